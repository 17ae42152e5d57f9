"""The interface of data sources: where the sentence pairs of a split come from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import PureWindowsPath

from datasets import Dataset, IterableDataset

from ..alignments import Links
from ..card_markdown import escape
from ..redaction import without_tokens


@dataclass(frozen=True)
class Provenance:
    """
    What a model card says about the data of a split.

    Args:
        text: the data's name, in Markdown.
        dataset_type, dataset_name: for the card's metadata.
        hub_name: the name of a data set on the Hub.
        subset, split: the parts of it that are used, as named there.
        limits: how the data limits the model; None: as any natural text does.
    """

    text: str
    dataset_type: str
    dataset_name: str
    hub_name: str | None = None
    subset: str | None = None
    split: str | None = None
    limits: str | None = None


def file_name(path: str) -> str:
    """The last part of a path, to publish."""
    return without_tokens(PureWindowsPath(path).name)  # splits at / and \ on any system


def local_provenance(files: list[str]) -> Provenance:
    """The provenance of local files: their names, without their folders."""
    names = ", ".join(map(file_name, files))
    return Provenance(f"local files ({escape(names)})", "local", names)


class PairSource(ABC):
    """
    The sentence pairs of one split. `data.sources.source_of` chooses the class for a recipe.

    The constructor touches neither disk nor network: a card is written from the recipe alone.
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

    def gold_links(self) -> list[Links] | None:
        """The words of each pair that translate each other, in the order of `load`; None: unknown."""
        return None

    @abstractmethod
    def stream(self) -> IterableDataset:
        """The same pairs, read as needed. UserError also as they are read."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the stream: a run resumes only with the data that it began with."""

    @abstractmethod
    def provenance(self) -> Provenance:
        """For the model card. It must not read the data: the card may be written on another machine."""
