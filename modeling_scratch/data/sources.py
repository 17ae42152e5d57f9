"""Sentence pairs from wherever a user has them, tokenized once and filtered by length."""

import itertools
import json
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from datasets import Dataset, DatasetDict, Features, Value, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from ..errors import UserError
from ..recipe.schema import EMBEDDED_CORPUS, SOURCE, TABLE_SUFFIXES, TARGET, DataSection, Files
from .corpus import HELD_OUT, make_corpus
from .pair_files import check_file, find_files, read_lines, read_pairs, read_rows

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
MANY_DROPPED = 0.1  # of a split's pairs: a limit that was set too low, or another kind of text

Columns = dict[str, tuple[str, str | None]]  # of a side: a column, and its key if it holds a text for each language


def load_pairs(data: DataSection, seed: int, only: str | None = None) -> DatasetDict:
    """
    The splits that a recipe names, each with text columns `source` and `target`; without the training pairs if these
    are streamed (`streaming.open_stream`).

    Args:
        data: where they are.
        seed: of the embedded corpus, and of the validation pairs held out where no validation split is given.
        only: load this split alone.

    Raises:
        UserError: a file is missing, empty, misaligned or not UTF-8; a column, language or split does not exist.
    """
    files = data.files()
    wanted = [only] if only else [split for split in SPLITS if split != "train" or not data.streaming]
    sets = [name for name in data.test_sets if only in (None, name)]
    wanted = [split for split in wanted if split not in sets]
    if any(split in files for split in SPLITS):
        if data.name != EMBEDDED_CORPUS:
            logger.info(f"data: local files, not {data.name}")
        if only is None and "train" not in files:
            raise UserError("data.train_files is not set, but other files are; name the training pairs too")
        splits = {split: _from_files(files[split], data, split) for split in wanted if split in files}
    elif data.name == EMBEDDED_CORPUS:
        splits = _from_embedded(data, seed, wanted)
    else:
        splits = _from_hub(data, wanted)
    splits |= {name: _from_files(files[name], data, name) for name in sets}
    if only and only not in splits:
        raise UserError(f"the recipe names no {only} split; set data.{only}_files or data.{only}")
    for split, dataset in splits.items():
        if not any(source and target for source, target in zip(dataset[SOURCE], dataset[TARGET], strict=True)):
            raise UserError(f"the {split} split has no pair with text on both sides")
    if not only and "validation" not in splits:
        if data.streaming:
            raise UserError(
                "data.streaming: pairs for validation cannot be held out of a stream; name them in "
                "data.validation_files or data.validation"
            )
        splits = _hold_out(splits, data.validation_size, seed)
    return DatasetDict(splits)


def _hold_out(splits: dict[str, Dataset], size: int, seed: int) -> dict[str, Dataset]:
    train = splits["train"]
    if size >= len(train):
        raise UserError(f"data.validation_size ({size}) leaves nothing of the {len(train)} pairs to train on")
    parts = train.train_test_split(test_size=size, seed=seed)
    logger.info(f"data: no validation split is named; held out {size:,} of {len(train):,} training pairs")
    return splits | {"train": parts["train"], "validation": parts["test"]}


def _from_embedded(data: DataSection, seed: int, wanted: list[str]) -> dict[str, Dataset]:
    languages = (data.source_language, data.target_language)
    if set(languages) != {"en", "de"}:
        raise UserError(f"the embedded corpus has the languages en and de, not {' and '.join(languages)}")
    corpus = make_corpus(0 if data.streaming else data.embedded_size, *HELD_OUT, seed)
    return {
        split: Dataset.from_dict(
            {
                SOURCE: [pair[data.source_language] for pair in corpus[split]],
                TARGET: [pair[data.target_language] for pair in corpus[split]],
            }
        )
        for split in wanted
    }


def _from_hub(data: DataSection, wanted: list[str]) -> dict[str, Dataset]:
    names = {"train": data.train, "validation": data.validation, "test": data.test}
    splits = {}
    for split in wanted:
        if names[split] is None:
            continue
        try:
            dataset = load_dataset(
                data.name, data.subset, split=names[split], revision=data.revision, streaming=data.streaming
            )
            if data.streaming:  # else all of its files would be fetched
                dataset = Dataset.from_list(list(dataset), features=dataset.features)
        except DatasetNotFoundError as error:
            raise UserError(f"data.name: {str(error).splitlines()[0]}") from error
        except ConnectionError as error:
            raise UserError(
                f"data.name: cannot reach the Hub for {data.name!r} and it is not in the cache; for local data set "
                "data.train_files"
            ) from error
        splits[split] = _select_columns(dataset, data, data.name)
    return splits


def _from_files(files: Files, data: DataSection, split: str) -> Dataset:
    paths = find_files(files, data, data.files_key(split))
    if isinstance(paths[0], Path):
        return _from_tables(paths, data)
    return concatenate_datasets([_from_text(*pair) for pair in paths])


def _stamps(paths: list[Path]) -> str:
    return repr([(path.stat().st_size, path.stat().st_mtime_ns) for path in paths])


def _from_text(source: Path, target: Path) -> Dataset:
    counts = {}
    for path in (source, target):
        check_file(path)
        counts[path] = sum(1 for _ in read_lines(path))  # also finds what is not UTF-8, before anything is cached
        if counts[path] == 0:
            raise UserError(f"{path}: the file is empty")
    if counts[source] != counts[target]:
        raise UserError(
            f"{source} has {counts[source]:,} lines and {target} has {counts[target]:,}; line i of one must translate "
            "line i of the other"
        )
    return Dataset.from_generator(
        read_pairs,
        features=Features({SOURCE: Value("string"), TARGET: Value("string")}),
        gen_kwargs={
            "source": str(source.resolve()),
            "target": str(target.resolve()),
            "stamps": _stamps([source, target]),
        },
    )


def _from_tables(paths: list[Path], data: DataSection) -> Dataset:
    for path in paths:
        check_file(path)
    suffixes = {path.suffix.lower() for path in paths}
    if len(suffixes) > 1:
        raise UserError(f"the files of one split must be of one kind, got {', '.join(sorted(suffixes))}")
    suffix = suffixes.pop()
    names = [str(path.resolve()) for path in paths]
    if suffix in (".csv", ".tsv"):
        if sum(1 for _ in read_rows(json.dumps(names), "")) == 0:  # also finds what is wrong, before it is cached
            raise UserError(f"{', '.join(map(str, paths))}: no rows below the header")
        dataset = Dataset.from_generator(read_rows, gen_kwargs={"paths": json.dumps(names), "stamps": _stamps(paths)})
    else:
        for path in paths if suffix != ".parquet" else []:
            for _ in read_lines(path):  # names the file and line of what is not UTF-8
                pass
        try:
            dataset = load_dataset(TABLE_SUFFIXES[suffix], data_files=names, split="train")
        except (DatasetGenerationError, ValueError) as error:
            cause = error.__cause__ or error
            raise UserError(f"{', '.join(map(str, paths))}: cannot be read as {suffix[1:]}: {cause}") from error
    return _select_columns(dataset, data, ", ".join(map(str, paths)))


def find_columns(names: list[str], languages: list[str] | None, data: DataSection, where: str) -> Columns:
    """
    Where a data set's `source` and `target` are: in a `translation` column with language keys, or in flat columns.

    Args:
        names: of its columns.
        languages: the keys of its `translation` column; empty if it has none, None if there is no such column.
    """
    columns: Columns = {}
    for side in (SOURCE, TARGET):
        language, column = getattr(data, f"{side}_language"), getattr(data, f"{side}_column")
        if column is None and languages is not None:
            if not languages:
                raise UserError(
                    f"{where}: its column 'translation' does not hold a sentence a language; set data.source_column "
                    "and data.target_column"
                )
            if language not in languages:
                raise UserError(f"{where} has no language {language!r}; it has {', '.join(languages)}")
            columns[side] = ("translation", language)
            continue
        name = column or language
        if name not in names:
            raise UserError(f"{where} has no column {name!r}; it has {', '.join(names)} (set data.{side}_column)")
        columns[side] = (name, None)
    return columns


def pick_columns(batch: dict[str, list], columns: Columns) -> dict[str, list[str]]:
    """A batch's sources and targets; an absent text is an empty one."""
    result = {}
    for side, (name, key) in columns.items():
        values = batch[name] if key is None else [(row or {}).get(key) for row in batch[name]]
        result[side] = ["" if value is None else str(value).strip() for value in values]
    return result


def _select_columns(dataset: Dataset, data: DataSection, where: str) -> Dataset:
    languages = None
    if "translation" in dataset.column_names:
        feature = dataset.features["translation"]
        languages = list(getattr(feature, "languages", list(feature) if isinstance(feature, dict) else []))
    columns = find_columns(dataset.column_names, languages, data, where)
    for name, key in columns.values():
        feature = dataset.features[name] if key is None else Value("string")
        if not isinstance(feature, Value):
            raise UserError(f"{where}: column {name!r} holds {feature}, not a text in each row")
    return dataset.map(
        partial(pick_columns, columns=columns),
        batched=True,
        remove_columns=dataset.column_names,
        new_fingerprint=Hasher.hash([dataset._fingerprint, columns]),
        desc="selecting columns",
    )


@dataclass
class PairTokenizer:
    """Makes token ids of pairs, and leaves out those that are empty or too long."""

    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    max_source_tokens: int
    max_target_tokens: int

    def __call__(self, sources: list[str], targets: list[str], indices: list[int]) -> dict[str, list]:
        """
        `input_ids` and `labels`, both ending in eos, their lengths, and the `index` of each pair that is kept, of
        those in `indices`.
        """
        inputs = self.source_tokenizer(sources, add_special_tokens=True).input_ids
        labels = self.target_tokenizer(targets, add_special_tokens=True).input_ids
        rows: dict[str, list] = {
            name: [] for name in ("input_ids", "labels", "source_length", "target_length", "index")
        }
        for source, target, source_ids, target_ids, index in zip(
            sources, targets, inputs, labels, indices, strict=True
        ):
            fits = len(source_ids) <= self.max_source_tokens and len(target_ids) <= self.max_target_tokens
            if source and target and fits:
                values = (source_ids, target_ids, len(source_ids), len(target_ids), index)
                for column, value in zip(rows.values(), values, strict=True):
                    column.append(value)
        return rows

    @property
    def limits(self) -> str:
        return f"{self.max_source_tokens} source or {self.max_target_tokens} target tokens"

    def key(self) -> str:
        """Of what it makes: hashing a tokenizer object is not stable from one process to the next."""
        tokenizers = [
            each.backend_tokenizer.to_str() if each.is_fast else repr(sorted(each.get_vocab().items()))
            for each in (self.source_tokenizer, self.target_tokenizer)
        ]
        return Hasher.hash([tokenizers, self.limits])


def tokenize_pairs(dataset: Dataset, tokenizer: PairTokenizer, split: str, num_workers: int = 0) -> Dataset:
    """
    What the tokenizer makes of each pair, cached by datasets. How many were dropped is logged.

    Args:
        num_workers: processes that share the work; fewer than two: this one does it.

    Raises:
        UserError: no pair is left.
    """

    def tokenize(batch: dict[str, list[str]], indices: list[int]) -> dict[str, list]:
        return tokenizer(batch[SOURCE], batch[TARGET], indices)

    tokenized = dataset.map(
        tokenize,
        with_indices=True,
        batched=True,
        remove_columns=dataset.column_names,
        new_fingerprint=Hasher.hash([dataset._fingerprint, tokenizer.key(), "tokenize"]),
        desc=f"tokenizing {split}",
        num_proc=num_workers if num_workers > 1 and len(dataset) >= 1000 * num_workers else None,
    )
    dropped = len(dataset) - len(tokenized)
    if dropped:
        share = dropped / len(dataset)
        logger.log(
            logging.WARNING if share > MANY_DROPPED else logging.INFO,
            f"data: dropped {dropped:,} of {len(dataset):,} {split} pairs ({share:.0%}) that were empty or longer than "
            f"{tokenizer.limits}",
        )
    if len(tokenized) == 0:
        raise UserError(
            f"all {len(dataset):,} {split} pairs were dropped: each was empty or longer than data.max_source_tokens "
            f"({tokenizer.max_source_tokens}) or data.max_target_tokens ({tokenizer.max_target_tokens})"
        )
    return tokenized


def pair_lengths(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Source and target lengths of tokenized pairs, eos counted."""
    table = dataset.select_columns(["source_length", "target_length"]).with_format("numpy")
    return np.asarray(table["source_length"][:]), np.asarray(table["target_length"][:])


def texts(dataset: Dataset) -> tuple[list[str], list[str]]:
    """The sources and the targets of untokenized pairs."""
    return list(itertools.chain(dataset[SOURCE])), list(itertools.chain(dataset[TARGET]))
