"""
Where sentence pairs come from: local files, a data set on the Hub or saved in a folder, or the embedded corpus; and the
pairs of each split.

To add another source, implement `PairSource` and choose it in `source_of`.
"""

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice, repeat
from pathlib import Path, PureWindowsPath
from typing import Any

from datasets import (
    Dataset,
    DatasetBuilder,
    DatasetDict,
    Features,
    IterableDataset,
    ReadInstruction,
    Value,
    concatenate_datasets,
    config,
    load_dataset,
    load_dataset_builder,
    load_from_disk,
)
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from datasets.fingerprint import Hasher
from xxhash import xxh3_128

from ..errors import UserError, as_user_error, beginning, first_line, without_tokens
from ..model.text import clean, with_features
from ..recipe.schema import DATES, EMBEDDED, EMBEDDED_CORPUS, FEATURES, SOURCE, TARGET, DataSection
from .corpus import DAYS, HELD_OUT, Links, gold_links, make_corpus, make_dates, stream_corpus, unmarked
from .local_files import (
    FIRST_ROWS,
    Columns,
    choose_columns,
    find_files,
    joined_cells,
    names_of_files,
    read_line_pairs,
    read_table,
)

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
EMBEDDED_PARTS = 64  # shards of a stream of the embedded corpus
_FOR_VALIDATION = 1000  # pairs that are held out by default, but at most a tenth of all
_OVERLAP_TO_WARN = 0.01  # warn if a larger share of a split's pairs are also training pairs
_READ_ROWS = 10_000
SEE_REPORT = "; `scratch corpus report` shows such pairs"  # the end of warnings about training pairs


@dataclass(frozen=True)
class Provenance:
    """
    The origin of the pairs of a split, in plain text, for a run's card.

    Args:
        dataset_type, dataset_name: for a card's metadata.
        hub_name: the name of a data set on the Hub.
        subset, split: the parts of it that are used, as named there.
        limits: what a model trained on this data cannot do; None: nothing beyond what holds for any natural text.
    """

    dataset_type: str
    dataset_name: str
    hub_name: str | None = None
    subset: str | None = None
    split: str | None = None
    limits: str | None = None


def file_name(path: str) -> str:
    """The last part of a path, which may be published."""
    return without_tokens(PureWindowsPath(path).name)  # splits at / and \ on any system


def local_provenance(files: list[str]) -> Provenance:
    """The provenance of local files: their names, without their folders."""
    return Provenance("local", ", ".join(map(file_name, files)))


class PairSource(ABC):
    """
    The sentence pairs of one split. `source_of` chooses the class for a recipe.

    The constructor touches neither disk nor network: a card is written from the recipe alone.
    """

    name: str  # for messages

    @property
    def revision(self) -> str | None:
        """The commit that a stream reads, if the data are on the Hub."""
        return None

    @abstractmethod
    def load(self) -> Dataset:
        """
        All pairs, in text columns `source` and `target`, and `features` if the recipe names columns of features.

        Raises:
            UserError: a file, column or language is missing, or something in a file cannot be read.
        """

    @abstractmethod
    def stream(self) -> IterableDataset:
        """The same pairs, read as needed. Iterating over them may raise UserError too."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the data of the stream: a run resumes only if it has not changed."""

    @abstractmethod
    def provenance(self) -> Provenance:
        """The origin of the pairs. It must not read the data: a card may be written on another machine."""

    def gold_links(self) -> list[Links] | None:
        """The words of each pair that translate each other, in the order of `load`; None: unknown."""
        return None


# -- local files -------------------------------------------------------------------------------------------------------

# Two text files, or a table and the columns that hold its texts.
Entry = tuple[tuple[Path, ...], Columns | None]


class LocalFiles(PairSource):
    """
    Pairs of text files, in which line i of one belongs to line i of the other, or tables with a source and a target in
    every row.

    Args:
        files: as the recipe names them.
        key: the recipe's key, for messages.
    """

    def __init__(self, files: list[str], data: DataSection, key: str):
        self.files, self.data, self.key = files, data, key
        self.name = ", ".join(files)

    def load(self) -> Dataset:
        """The pairs, cached by the datasets library until the content of a file changes."""
        entries = self._entries()
        key = Hasher.hash([entries, [_digest(path) for paths, _ in entries for path in paths]])
        folder = config.HF_DATASETS_CACHE / "modeling_scratch" / key
        names = [SOURCE, TARGET, *([FEATURES] if self.data.feature_columns else [])]
        with as_user_error(f"the cache of the datasets library cannot be read; delete {folder}: "):
            try:
                return Dataset.from_generator(
                    _read,
                    features=Features(dict.fromkeys(names, Value("string"))),
                    cache_dir=str(folder),
                    gen_kwargs={"entries": entries},
                    fingerprint=key,
                )
            except DatasetGenerationError as error:  # raised while the files are read
                cause = error.__cause__ or error
        raise cause

    def stream(self) -> IterableDataset:
        return IterableDataset.from_generator(_read, gen_kwargs={"entries": self._entries()})

    def fingerprint(self) -> str:
        """Names, sizes and beginnings of the files: reading a whole corpus just for this would take too long."""
        return _identified(path for paths in find_files(self.files, self.data, self.key) for path in paths)

    def provenance(self) -> Provenance:
        return local_provenance(names_of_files(self.files, self.data))

    def _entries(self) -> list[Entry]:
        """The files to read. Tables without rows are left out, and tables may differ in their unused columns."""
        found = find_files(self.files, self.data, self.key)
        if len(found[0]) == 2:
            return [((source.absolute(), target.absolute()), None) for source, target in found]
        header = not isinstance(self.data.source_column, int)
        first = {path: list(islice(read_table(path, header), FIRST_ROWS)) for (path,) in found}
        if not any(first.values()):
            raise UserError(f"{', '.join(map(str, first))}: there are no rows")
        return [
            ((path.absolute(),), choose_columns(rows, self.data, str(path))) for path, rows in first.items() if rows
        ]


def _read(entries: list[Entry]) -> Iterator[dict[str, str]]:
    """The pairs; the datasets library treats each entry as a shard."""
    for paths, columns in entries:
        yield from read_line_pairs(*paths) if columns is None else _read_table(paths[0], columns)


def _read_table(path: Path, columns: Columns) -> Iterator[dict[str, str]]:
    header = not isinstance(columns[SOURCE][0][0], int)
    for number, row in enumerate(read_table(path, header), start=1):
        where = f"{path}, row {number}"
        yield {
            side: joined_cells([(row.get(name), name, key) for name, key in chosen], where)
            for side, chosen in columns.items()
        }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxh3_128).hexdigest()


def _identified(paths: Iterable[Path]) -> str:
    """Names, sizes and hashes of the beginnings of files."""
    described = []
    for path in paths:
        with path.open("rb") as file:
            start = hashlib.sha256(file.read(2**20)).hexdigest()[:8]
        described.append(f"{path} ({path.stat().st_size:,} bytes, beginning {start})")
    return ", ".join(described)


# -- data sets on the Hub ----------------------------------------------------------------------------------------------


class HubDataset(PairSource):
    """
    A split of a data set on the Hub.

    Args:
        split: its name there, such as "train[:1000]".
    """

    def __init__(self, data: DataSection, split: str):
        self.data, self.split, self.name = data, split, data.name

    def load(self) -> Dataset:
        data = self.data
        with self._explained():
            if data.streaming:  # a stream downloads only this split
                return Dataset.from_list(list(self.stream()))
            return self._pairs(load_dataset(data.name, data.subset, split=self.split, revision=data.revision))

    def stream(self) -> IterableDataset:
        with self._explained():
            return self._pairs(self._builder.as_streaming_dataset(split=self.split))

    def _pairs(self, rows: Dataset | IterableDataset) -> Dataset | IterableDataset:
        return rows.map(**self._mapping(rows))

    def _mapping(self, rows: Dataset | IterableDataset) -> dict[str, Any]:
        """Arguments of `map` that turn rows into pairs."""
        first = list(islice(rows, FIRST_ROWS))
        columns = choose_columns(first, self.data, self.name)
        function = partial(_texts, columns=columns, where=self.name)
        return {"function": function, "batched": True, "remove_columns": list(first[0])}

    @cached_property
    def _builder(self) -> DatasetBuilder:
        """Made once, so that everything is read from one commit."""
        return load_dataset_builder(self.data.name, self.data.subset, revision=self.data.revision)

    @property
    def revision(self) -> str | None:
        with self._explained():
            return self._builder.hash

    def fingerprint(self) -> str:
        return f"{self.data.name} {self.data.subset} {self.split} {self.revision}"

    def provenance(self) -> Provenance:
        return Provenance(self.name, self.name, hub_name=self.name, subset=self.data.subset, split=self.split)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except DatasetNotFoundError as error:
            raise UserError(f"data.name: {first_line(error)}") from error
        except ConnectionError as error:
            raise UserError(
                f"data.name: cannot reach the Hub for {self.name!r}, which is not in the cache either; for local data "
                "set data.train_files"
            ) from error
        except Exception as error:
            # "Config" or "config", depending on the kind of data set
            advice = " (set data.subset)" if "onfig name is missing" in str(error) else ""
            with as_user_error(f"data.name: {self.name!r} cannot be read{advice}: "):
                raise


class SavedDataset(HubDataset):
    """
    A split of a `DatasetDict`, or a `Dataset` as the split train, that `save_to_disk` has written to a folder. Only the
    files that it names there are read: others, with the results of `map`, have the same rows again.
    """

    def load(self) -> Dataset:
        """The pairs, cached by the datasets library, but not in the folder itself."""
        with self._explained():
            rows = self._rows()
            mapping = self._mapping(rows)
            digests = [_digest(Path(file["filename"])) for file in rows.cache_files]
            key = Hasher.hash([digests, self.split, mapping["function"].keywords])
            path = config.HF_DATASETS_CACHE / "modeling_scratch" / key / "pairs.arrow"
            path.parent.mkdir(parents=True, exist_ok=True)
            return rows.map(**mapping, cache_file_name=str(path), new_fingerprint=key)

    def stream(self) -> IterableDataset:
        with self._explained():
            return self._pairs(self._rows().to_iterable_dataset())

    @property
    def revision(self) -> None:
        return None

    def fingerprint(self) -> str:
        with self._explained():
            return f"{self.split} of {_identified(Path(file['filename']) for file in self._rows().cache_files)}"

    def _rows(self) -> Dataset:
        """The rows of the split, which may be a part such as train[:1000], or a sum."""
        if self.data.subset or self.data.revision:
            raise UserError(
                f"data.name: {self.name} was written by save_to_disk, and has no subsets or revisions; set "
                "data.subset=null data.revision=null"
            )
        with as_user_error(f"data.name: {self.name} is incomplete or damaged; write it again by save_to_disk: "):
            saved = load_from_disk(self.name, keep_in_memory=False)
        splits = saved if isinstance(saved, DatasetDict) else {"train": saved}
        names = ", ".join(splits)
        asked = {part.split("[")[0].strip() for part in self.split.split("+")}
        if missing := asked - splits.keys():
            raise UserError(
                f"data.name: {self.name} has no split {min(missing)!r}; it has {names}: set data.train, "
                "data.validation and data.test to its splits, the last two to null if it has none for them"
            )
        parts = ReadInstruction.from_spec(self.split).to_absolute({name: len(splits[name]) for name in splits})
        rows = [splits[part.splitname].select(range(part.from_, part.to)) for part in parts]
        return concatenate_datasets(rows).with_format(None)


def _is_saved(name: str) -> bool:
    """Whether `save_to_disk` has written a folder, even if a file that it needs is gone."""
    files = (config.DATASETDICT_JSON_FILENAME, config.DATASET_STATE_JSON_FILENAME)
    if any(os.path.isfile(os.path.join(name, file)) for file in files):
        return True
    return os.path.isdir(name) and any(Path(name).glob(f"*/{config.DATASET_STATE_JSON_FILENAME}"))


def _texts(batch: dict[Any, list], columns: Columns, where: str) -> dict[str, list[str]]:
    """The sources, the targets and, if the data have them, the features of a batch of rows."""
    return {
        side: [
            joined_cells([(value, *column) for value, column in zip(values, chosen, strict=True)], where)
            for values in zip(*(batch[name] for name, _ in chosen), strict=True)
        ]
        for side, chosen in columns.items()
    }


# -- the embedded corpus -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _corpus(size: int, seed: int) -> dict[str, list[dict[str, str]]]:
    return make_corpus(size, *HELD_OUT, seed, marked=True)


class EmbeddedCorpus(PairSource):
    """English and German sentences, generated by a small grammar."""

    name = EMBEDDED_CORPUS

    def __init__(self, data: DataSection, split: str, seed: int):
        self.data, self.split, self.seed = data, split, seed
        self.part_size = -(-data.embedded_size // EMBEDDED_PARTS)

    def load(self) -> Dataset:
        sources, targets = self._marked()
        return Dataset.from_dict({SOURCE: list(map(unmarked, sources)), TARGET: list(map(unmarked, targets))})

    def stream(self) -> IterableDataset:
        names = (SOURCE, TARGET) if self._languages() == ("en", "de") else (TARGET, SOURCE)
        parts = {"parts": list(range(EMBEDDED_PARTS)), "size": self.part_size, "seed": self.seed, "names": names}
        return IterableDataset.from_generator(stream_corpus, gen_kwargs=parts)

    def fingerprint(self) -> str:
        return f"the embedded corpus, {self.part_size} pairs a part, seed {self.seed}"

    def provenance(self) -> Provenance:
        limits = (
            "The embedded corpus is generated by a small grammar with a few hundred words, and each sentence has one "
            "correct translation. The model knows nothing else: it shows that training works, but does not translate "
            "ordinary text. Its scores cannot be compared with those on natural text."
        )
        return Provenance(EMBEDDED_CORPUS, "the embedded corpus of modeling_scratch", limits=limits)

    def gold_links(self) -> list[Links]:
        """The links that the grammar knows from generating the sentences; all are sure."""
        return list(map(gold_links, *self._marked()))

    def _languages(self) -> tuple[str, str]:
        languages = self.data.languages or ("en", "de")
        if set(languages) != {"en", "de"}:
            raise UserError(
                "data.source_language and data.target_language: the embedded corpus is English and German (en, de), "
                f"not {' and '.join(languages)}"
            )
        return languages

    def _marked(self) -> tuple[list[str], list[str]]:
        """The sources and targets of the split, with the marks of words that translate each other."""
        source, target = self._languages()
        pairs = _corpus(0 if self.data.streaming else self.data.embedded_size, self.seed)[self.split]
        return [pair[source] for pair in pairs], [pair[target] for pair in pairs]


class Dates(PairSource):
    """Dates as people write them, and in ISO 8601: pairs that are not translations."""

    name = DATES

    def __init__(self, data: DataSection, split: str, seed: int):
        self.data, self.split, self.seed = data, split, seed

    def load(self) -> Dataset:
        if self.data.embedded_size > (most := len(DAYS) - sum(HELD_OUT)):
            raise UserError(f"data.embedded_size: there are only {most:,} dates to train on")
        pairs = make_dates(self.data.embedded_size, *HELD_OUT, self.seed)[self.split]
        return Dataset.from_dict(dict(zip((SOURCE, TARGET), map(list, zip(*pairs, strict=True)), strict=True)))

    def stream(self) -> IterableDataset:
        raise UserError("data.streaming: the dates fit into memory; set data.streaming=false")

    def fingerprint(self) -> str:
        return f"dates, {self.data.embedded_size} pairs, seed {self.seed}"

    def provenance(self) -> Provenance:
        limits = "Its dates are generated, from 1900 to 2099 and in six ways of writing; it knows no others."
        return Provenance(DATES, "the dates of modeling_scratch", limits=limits)


# -- the source and the pairs of each split ----------------------------------------------------------------------------


def source_of(split: str, data: DataSection, seed: int, key: str | None = None) -> PairSource | None:
    """
    The source of a split, or of a further test set; None if the recipe names none.

    Args:
        key: the recipe's key for local files, for messages; None: the split's own key.
    """
    files = data.files()
    if split in files:
        return LocalFiles(files[split], data, key or data.files_key(split))
    if any(name in files for name in SPLITS):  # local files replace `data.name` for all splits
        return None
    name = getattr(data, split, None)
    if name is None:
        return None
    if data.name == DATES:
        return Dates(data, split, seed)
    if data.name == EMBEDDED_CORPUS:
        return EmbeddedCorpus(data, split, seed)
    return (SavedDataset if _is_saved(data.name) else HubDataset)(data, name)


def load_pairs(data: DataSection, seed: int) -> DatasetDict:
    """
    The splits that a recipe names, with text columns `source` and `target`; without the training pairs if these are
    streamed (`streaming.open_stream`).

    Args:
        seed: for the embedded corpus, and for holding out validation pairs if the recipe names none.

    Raises:
        UserError: a file is missing, empty, misaligned or not UTF-8; a column, language or split does not exist.
    """
    files = data.files()
    if any(split in files for split in SPLITS):
        if data.name not in EMBEDDED:
            logger.info(f"data: using local files; data.name ({data.name}) is ignored")
        if "train" not in files:
            raise UserError("data.train_files must be set if the other splits are local files")
    pairs = {}
    for split in (*SPLITS, *data.test_sets):
        source = source_of(split, data, seed)
        if source is None or (split == "train" and data.streaming):
            continue
        pairs[split] = _load(source, split)
        first = pairs[split][0]
        shown = " → ".join(beginning(first[side]) for side in (SOURCE, TARGET))
        shown += f", {FEATURES} {beginning(first[FEATURES])}" if FEATURES in first else ""
        if split != "train":
            _warn_about_empty(pairs[split], split)
        languages = " to ".join(data.names)
        logger.info(f"data: {split}: {len(pairs[split]):,} pairs, {languages}, from {source.name}; the first: {shown}")
    train, held_out = pairs.get("train"), None
    named = {split: pairs[split] for split in pairs if split != "train"}
    if "validation" not in pairs:
        if data.streaming:
            raise UserError(
                "data.streaming: validation pairs cannot be held out of a stream; set data.validation_files or "
                "data.validation"
            )
        pairs["train"], pairs["validation"] = _hold_out(train, data.validation_size, seed)
        held_out = pairs["validation"]
    if train is not None:
        _warn_about_overlap(train, named)
        if data.mix:
            pairs["train"] = _mix(pairs["train"], data, seed, named, held_out)
    return DatasetDict(pairs)


def load_split(data: DataSection, seed: int, split: str) -> Dataset:
    """The pairs of one split or further test set that a recipe names or holds out, as `load_pairs` returns them."""
    if split in ("train", "validation") and source_of("validation", data, seed) is None:
        data = data if split == "train" else data.model_copy(update={"mix": [], "weight": 1.0})
        return load_pairs(data, seed)[split]
    if (source := source_of(split, data, seed)) is None:
        raise UserError(f"the recipe has no {split} split; set data.{split}_files or data.{split}")
    pairs = _load(source, split)
    if split != "train":
        _warn_about_empty(pairs, split)
    return _mix(pairs, data, seed, {}, None) if split == "train" and data.mix else pairs


def _load(source: PairSource, split: str) -> Dataset:
    pairs = source.load()
    if not any(map(all, _pairs_of(pairs))):
        raise UserError(f"the {split} split has no pair with text on both sides")
    return pairs


def mixed_sources(data: DataSection, seed: int) -> list[PairSource]:
    """The sources of `data.mix`, in its order."""
    sections = enumerate(data.mixed())
    found = [source_of("train", section, seed, f"data.mix[{place}].files") for place, section in sections]
    return [source for source in found if source is not None]


def _mix(train: Dataset, data: DataSection, seed: int, named: dict[str, Dataset], held_out: Dataset | None) -> Dataset:
    """
    The training pairs followed by those of `data.mix`, with a column `weight`.

    Args:
        named: the splits that the recipe names, for warnings.
        held_out: the pairs held out of the training pairs for validation, which `data.mix` must not contain either.
    """
    parts = [train.add_column("weight", [data.weight] * len(train))]
    for place, (entry, source) in enumerate(zip(data.mix, mixed_sources(data, seed), strict=True)):
        try:
            pairs = source.load()
        except UserError as error:
            raise UserError(f"data.mix[{place}]: {error}") from error
        _warn_about_overlap(pairs, named)
        if held_out is not None:
            sources = {source for source, _ in _pairs_of(held_out)}
            kept = [row for row, (source, _) in enumerate(_pairs_of(pairs)) if source not in sources]
            if count := len(pairs) - len(kept):
                logger.info(f"data: left out {count:,} pairs of data.mix[{place}] with sources held out for validation")
                pairs = pairs.select(kept)
        if entry.tag is not None:
            pairs = pairs.map(partial(_tagged, tag=entry.tag), batched=True, desc="tagging")
        parts.append(pairs.add_column("weight", [entry.weight] * len(pairs)))
    logger.info(f"data: {len(train):,} training pairs, mixed with {', '.join(f'{len(part):,}' for part in parts[1:])}")
    if any(FEATURES in part.column_names for part in parts):
        parts = [
            part if FEATURES in part.column_names else part.add_column(FEATURES, [""] * len(part)) for part in parts
        ]
    return concatenate_datasets(parts)


def _tagged(batch: dict[str, list[str]], tag: str) -> dict[str, list[str]]:
    """The sources of a batch of pairs, with the tag before all that are not empty."""
    return {SOURCE: [text and f"{tag} {text}" for text in batch[SOURCE]]}


def _hold_out(train: Dataset, size: int | None, seed: int) -> tuple[Dataset, Dataset]:
    """
    Training pairs, and validation pairs held out of them so that no source is in both. Pairs are drawn at random and
    held out in that order, with all other targets of their sources, until there are enough. Copies of held-out pairs
    are left out of both, and so are drawn pairs without text on both sides.
    """
    size = size or max(1, min(_FOR_VALIDATION, len(train) // 10))
    if size >= len(train):
        raise UserError(
            f"data.validation_size ({size}) leaves none of the {len(train)} pairs for training; set a smaller one or "
            "data.validation_files"
        )
    rows = Dataset.from_dict({"row": range(len(train))}).train_test_split(test_size=size, seed=seed)
    drawn = rows["test"]["row"][:]
    complete = [(row, *pair) for row, pair in zip(drawn, _pairs_of(train.select(drawn)), strict=True) if all(pair)]
    if not complete:
        raise UserError(
            f"none of the {size} pairs held out for validation has text on both sides; set a larger "
            "data.validation_size or data.validation_files"
        )
    rows_of: dict[str, dict[str, list[int]]] = {source: defaultdict(list) for _, source, _ in complete}
    for row, (source, target) in enumerate(_pairs_of(train)):
        if target and source in rows_of:
            rows_of[source][target].append(row)
    held_out: list[int] = []
    taken: set[int] = set()  # all rows of the held-out sources
    for row, source, target in complete:
        if len(held_out) >= size:
            break
        if row not in taken:
            held_out += [row, *(rows[0] for other, rows in rows_of[source].items() if other != target)]
            taken.update(*rows_of[source].values())
        elif len(rows_of[source]) == 1:
            held_out.append(row)
    logger.info(f"data: there is no validation split; held out {len(held_out):,} of {len(train):,} training pairs")
    if count := len(taken) - len(held_out):
        logger.info(f"data: left out {count:,} training pairs that are copies of held-out pairs")
    kept = [row for row in (*rows["train"]["row"][:], *(row for row, *_ in complete)) if row not in taken]
    if not kept:
        raise UserError(
            f"all other training pairs have the sources of the {len(held_out):,} held out for validation; set a "
            "smaller data.validation_size or data.validation_files"
        )
    return train.select(kept), train.select(held_out)


def whole_sources(pairs: Mapping[str, Sequence[str]]) -> list[str]:
    """What models read of the sources of pairs; see `with_features`."""
    return list(map(with_features, pairs[SOURCE], pairs[FEATURES] if FEATURES in pairs else repeat("")))


def sources_of(dataset: Dataset) -> list[str]:
    """What models read of the sources of a data set."""
    return whole_sources({name: dataset[name][:] for name in dataset.column_names})


def side_of(pairs: Mapping[str, Sequence[str]], side: str) -> Sequence[str]:
    """One side of pairs, with the features of sources, if the data have any."""
    return whole_sources(pairs) if side == SOURCE and FEATURES in pairs else pairs[side]


def _pairs_of(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """The source of each row as models read it, and the target without invisible characters."""
    for batch in dataset.iter(_READ_ROWS):
        yield from zip(whole_sources(batch), map(clean, batch[TARGET]), strict=True)


def _warn_about_overlap(train: Dataset, named: dict[str, Dataset]) -> None:
    """Log how many sources of each split are also trained on: scores on them would be too good."""
    splits = {split: [pair for pair in _pairs_of(pairs) if all(pair)] for split, pairs in named.items()}
    sources = {source for pairs in splits.values() for source, _ in pairs}
    trained = {pair for pair in _pairs_of(train) if pair[0] in sources and pair[1]}
    trained_sources = {source for source, _ in trained}
    for split, pairs in splits.items():
        if count := sum(source in trained_sources for source, _ in pairs):
            total = len(named[split])
            is_much = count / total > _OVERLAP_TO_WARN
            logger.log(
                logging.WARNING if is_much else logging.INFO,
                f"data: the sources of {count:,} of the {total:,} {split} pairs ({count / total:.1%}) are also in "
                f"training pairs, with the same target for {sum(pair in trained for pair in pairs):,}; scores on them "
                f"are better than on new sources{SEE_REPORT if is_much else ''}",
            )


def _warn_about_empty(pairs: Dataset, split: str) -> None:
    """Warn of pairs to score that have no text on a side."""
    empty = [(row, pair) for row, pair in enumerate(_pairs_of(pairs), start=1) if not all(pair)]
    if empty:
        row, (source, target) = empty[0]
        logger.warning(
            f"data: {len(empty):,} of the {len(pairs):,} {split} pairs have an empty side, first pair {row:,} "
            f"({beginning(source)} → {beginning(target)}); they are scored too: where the target is empty, WER counts "
            "any output as wrong, and chrF counts none. Complete these pairs or delete them"
        )
