"""The seam for new kinds of data: a place that holds the sentence pairs of a split."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import PureWindowsPath

from datasets import Dataset, IterableDataset

from ..model.plain_card import escape
from ..redaction import TOKEN


@dataclass(frozen=True)
class Provenance:
    """
    What a model card says about the data of a split.

    Args:
        text: names it, in Markdown.
        dataset_type, dataset_name: for the card's metadata.
        hub_name: of a data set on the Hub.
        subset, split: the parts of it, by their names there.
        limits: what the data do to the model; None: what holds for any natural text.
    """

    text: str
    dataset_type: str
    dataset_name: str
    hub_name: str | None = None
    subset: str | None = None
    split: str | None = None
    limits: str | None = None


def local_provenance(files: str | list[str]) -> Provenance:
    """Files that stay where they are; of their folders nothing is said."""
    paths = [files] if isinstance(files, str) else files
    # Parted at / and \, wherever the card is written.
    names = ", ".join(TOKEN.sub("hf_...", PureWindowsPath(path).name) for path in paths)
    return Provenance(f"local files ({escape(names)})", "local", names)


class PairSource(ABC):
    """
    The sentence pairs of one split in one place. `data.sources.source_of` decides which class reads which recipe.

    Making one touches neither disk nor network: a card is written from the recipe alone.
    """

    name: str  # for messages
    revision: str | None = None  # the commit that a stream reads, for data on the Hub

    @abstractmethod
    def load(self) -> Dataset:
        """
        All pairs, in text columns `source` and `target`.

        Raises:
            UserError: a file, column or language is missing, or something in a file cannot be read.
        """

    @abstractmethod
    def stream(self) -> IterableDataset:
        """The rows as they are in this place (`columns.find_columns` tells where the texts are), read as needed."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Tells this stream from others: a run resumes only with the data that it began with."""

    @abstractmethod
    def provenance(self) -> Provenance:
        """For the model card. It must not need the data: the card may be written elsewhere."""
