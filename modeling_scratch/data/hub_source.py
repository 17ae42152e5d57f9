"""Sentence pairs in a data set on the Hugging Face Hub."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

from datasets import Dataset, DatasetBuilder, IterableDataset, load_dataset, load_dataset_builder
from datasets.exceptions import DatasetNotFoundError

from ..card_markdown import escape
from ..errors import UserError, as_user_error, first_line
from ..recipe.schema import DataSection
from .columns import FIRST_ROWS, choose_columns, texts_of
from .pair_source import PairSource, Provenance


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
            if data.streaming:  # which fetches no more than this split
                return Dataset.from_list(list(self.stream()))
            return self._pairs(load_dataset(data.name, data.subset, split=self.split, revision=data.revision))

    def stream(self) -> IterableDataset:
        with self._explained():
            return self._pairs(self._builder.as_streaming_dataset(split=self.split))

    def _pairs(self, rows: Dataset | IterableDataset) -> Dataset | IterableDataset:
        first = list(islice(rows, FIRST_ROWS))
        columns = choose_columns(first, self.data, self.name)
        return rows.map(
            partial(texts_of, columns=columns, where=self.name), batched=True, remove_columns=list(first[0])
        )

    @cached_property
    def _builder(self) -> DatasetBuilder:
        """Made once, so that everything is read from one commit."""
        return load_dataset_builder(self.data.name, self.data.subset, revision=self.data.revision)

    @property
    def revision(self) -> str:
        with self._explained():
            return self._builder.hash

    def fingerprint(self) -> str:
        return f"{self.data.name} {self.data.subset} {self.split} {self.revision}"

    def provenance(self) -> Provenance:
        name, subset = self.name, self.data.subset
        link = f"[{name}](https://huggingface.co/datasets/{name})" + (f" ({escape(subset)})" if subset else "")
        return Provenance(link, name, name, hub_name=name, subset=subset, split=self.split)

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
                f"data.name: cannot reach the Hub for {self.name!r} and it is not in the cache; for local data set "
                "data.train_files"
            ) from error
        except Exception as error:
            with as_user_error(f"data.name: {self.name!r} cannot be read{self._advice(error)}: "):
                raise

    def _advice(self, error: Exception) -> str:
        if "onfig name is missing" in str(error):
            return " (set data.subset)"
        with suppress(Exception):  # without a builder, nothing was cached
            folder = Path(self._builder.cache_dir)
            if folder.exists() and not self.data.streaming:
                return f" (if what was fetched is damaged, delete it: {folder})"
        return ""
