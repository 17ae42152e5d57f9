"""The seam for new kinds of data: a place that holds the sentence pairs of a split."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from datasets import Dataset, IterableDataset


@dataclass(frozen=True)
class Provenance:
    """What a model card says about the data."""

    text: str  # in Markdown
    dataset: str | None = None  # its name on the Hub
    subset: str | None = None
    caveat: str | None = None  # what a reader must know to judge the scores


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
        """For the model card."""
