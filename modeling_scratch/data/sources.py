"""Which place a recipe's pairs come from, and the pairs of each split."""

import logging
from functools import cache

from datasets import Dataset, DatasetDict, IterableDataset

from ..errors import UserError
from ..recipe.schema import EMBEDDED_CORPUS, SOURCE, TARGET, DataSection
from .corpus import HELD_OUT, make_corpus, stream_corpus
from .file_sources import Tables, TextFiles
from .hub_source import HubDataset
from .pair_files import is_table
from .pair_source import PairSource, Provenance

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
EMBEDDED_PARTS = 64  # into which a stream of the embedded corpus is cut


@cache
def _corpus(size: int, seed: int) -> dict[str, list[dict[str, str]]]:
    return make_corpus(size, *HELD_OUT, seed)


class EmbeddedCorpus(PairSource):
    """Sentences of a small grammar, in English and German, made on the spot."""

    name = EMBEDDED_CORPUS

    def __init__(self, data: DataSection, split: str, seed: int):
        self.data, self.split, self.seed = data, split, seed
        self.part_size = -(-data.embedded_size // EMBEDDED_PARTS)

    def _languages(self) -> tuple[str, str]:
        languages = (self.data.source_language, self.data.target_language)
        if set(languages) != {"en", "de"}:
            raise UserError(f"the embedded corpus has the languages en and de, not {' and '.join(languages)}")
        return languages

    def load(self) -> Dataset:
        source, target = self._languages()
        pairs = _corpus(0 if self.data.streaming else self.data.embedded_size, self.seed)[self.split]
        return Dataset.from_dict({SOURCE: [pair[source] for pair in pairs], TARGET: [pair[target] for pair in pairs]})

    def stream(self) -> IterableDataset:
        self._languages()
        parts = {"parts": list(range(EMBEDDED_PARTS)), "size": self.part_size, "seed": self.seed}
        return IterableDataset.from_generator(stream_corpus, gen_kwargs=parts)

    def fingerprint(self) -> str:
        return f"the embedded corpus, {self.part_size} pairs a part, seed {self.seed}"

    def provenance(self) -> Provenance:
        name = "the embedded corpus of modeling_scratch"
        limits = (
            "The embedded corpus is made by a small grammar: a few hundred words, and one right translation for each "
            "sentence. The model knows nothing else: it shows that the training works, and does not translate ordinary "
            "text. Its scores cannot be compared with those on natural text."
        )
        return Provenance(name, EMBEDDED_CORPUS, name, limits=limits)


def source_of(split: str, data: DataSection, seed: int) -> PairSource | None:
    """
    Where a recipe has the pairs of a split, or of a further test set; None if it names none.

    A new kind of data gets its PairSource here.
    """
    files = data.files()
    if split in files:
        names = [files[split]] if isinstance(files[split], str) else files[split]
        kind = Tables if any(map(is_table, names)) else TextFiles
        return kind(files[split], data, data.files_key(split))
    if any(each in files for each in SPLITS):  # files replace all of `data.name`
        return None
    if data.name == EMBEDDED_CORPUS:
        return EmbeddedCorpus(data, split, seed)
    name = getattr(data, split)
    return None if name is None else HubDataset(data, name)


def load_pairs(data: DataSection, seed: int, only: str | None = None) -> DatasetDict:
    """
    The splits that a recipe names, each with text columns `source` and `target`; without the training pairs if these
    are streamed (`streaming.open_stream`).

    Args:
        seed: of the embedded corpus, and of the validation pairs held out where no validation split is given.
        only: load this split alone.

    Raises:
        UserError: a file is missing, empty, misaligned or not UTF-8; a column, language or split does not exist.
    """
    files = data.files()
    if any(split in files for split in SPLITS):
        if data.name != EMBEDDED_CORPUS:
            logger.info(f"data: local files, not {data.name}")
        if only is None and "train" not in files:
            raise UserError("data.train_files is not set, but other files are; name the training pairs too")
    wanted = [split for split in (*SPLITS, *data.test_sets) if split != "train" or not data.streaming]
    pairs = {}
    for split in [only] if only else wanted:
        if (source := source_of(split, data, seed)) is not None:
            pairs[split] = source.load()
            if not any(one and other for one, other in zip(pairs[split][SOURCE], pairs[split][TARGET], strict=True)):
                raise UserError(f"the {split} split has no pair with text on both sides")
    if only and only not in pairs:
        raise UserError(f"the recipe names no {only} split; set data.{only}_files or data.{only}")
    if not only and "validation" not in pairs:
        if data.streaming:
            raise UserError(
                "data.streaming: pairs for validation cannot be held out of a stream; name them in "
                "data.validation_files or data.validation"
            )
        pairs |= _hold_out(pairs["train"], data.validation_size, seed)
    return DatasetDict(pairs)


def _hold_out(train: Dataset, size: int, seed: int) -> dict[str, Dataset]:
    """Validation pairs, and the training pairs without them."""
    if size >= len(train):
        raise UserError(f"data.validation_size ({size}) leaves nothing of the {len(train)} pairs to train on")
    parts = train.train_test_split(test_size=size, seed=seed)
    logger.info(f"data: no validation split is named; held out {size:,} of {len(train):,} training pairs")
    return {"train": parts["train"], "validation": parts["test"]}
