"""Translate a whole corpus on all processes, each sentence once, in shards that survive an interruption."""

import hashlib
import itertools
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import Stopped, UserError
from ..files import write_whole
from ..runs.processes import on_main, together
from ..runs.stopping import StopDecoding, StopRequest
from .evaluation import translate
from .log import spoken_duration

logger = logging.getLogger(__name__)

SHARD = 1000  # sentences: what an interruption costs each process at most
_SOURCE = "source.sha256"  # of the sentences that a folder's shards translate


class ShardedTranslation:
    """
    The translations of some sentences, in a folder with a file for every 1,000 of them.

    Args:
        sentences: without line feeds.
        name: for messages.
    """

    def __init__(self, folder: Path, sentences: Sequence[str], name: str):
        self.folder, self.sentences, self.name = folder, sentences, name
        self.count = -(-len(sentences) // SHARD)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.txt"

    def missing(self) -> list[int]:
        """The numbers of the shards that are still to be translated."""
        return [number for number in range(self.count) if not self._path(number).is_file()]

    def read(self) -> list[str]:
        """All translations, in the order of the sentences. UserError if a shard has other lines than were written."""
        lines = [self._path(number).read_text(encoding="utf-8").split("\n")[:-1] for number in range(self.count)]
        for number, shard in enumerate(lines):
            if len(shard) != len(self._sentences(number)):
                raise UserError(f"{self._path(number)}: {len(shard)} lines; delete it, and it is translated again")
        return list(itertools.chain.from_iterable(lines))

    def _sentences(self, number: int) -> Sequence[str]:
        return self.sentences[number * SHARD : (number + 1) * SHARD]

    def _open(self) -> None:
        """Make the folder. UserError if it has translations of other sentences."""
        digest = hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = self.folder / _SOURCE
        if not mark.exists():
            write_whole(mark, digest)
        elif mark.read_text(encoding="utf-8") != digest:
            raise UserError(f"{self.folder} holds translations of other sentences; delete it to translate anew")

    def complete(
        self,
        model: PreTrainedModel,
        tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
        accelerator: Accelerator,
        stop: StopRequest,
        **options,
    ) -> None:
        """
        Translate what is missing. All processes call this together, each with the whole model.

        Args:
            options: of `evaluation.translate`.

        Raises:
            Stopped: a process was asked to stop; the shards that are complete stay.
            UserError: the folder cannot be used.
        """
        on_main(accelerator, self._open)
        missing = on_main(accelerator, self.missing)
        mine = missing[accelerator.process_index :: accelerator.num_processes]
        together(accelerator, lambda: self._translate(mine, model, tokenizers, stop, options))
        if stop.agreed(accelerator):
            raise Stopped

    def _translate(self, numbers: list[int], model, tokenizers, stop: StopRequest, options: dict) -> None:
        began = time.monotonic()
        options = options | {"stopping_criteria": [StopDecoding(stop)]}
        for done, number in enumerate(numbers, start=1):
            translations = translate(model, *tokenizers, self._sentences(number), progress=None, **options)
            if stop:  # the last sentences may be unfinished
                return
            lines = (text.replace("\r", " ").replace("\n", " ") for text in translations)
            write_whole(self._path(number), "".join(f"{line}\n" for line in lines))
            left = (time.monotonic() - began) / done * (len(numbers) - done)
            logger.info(f"{self.name}: {done} of {len(numbers)} shards, about {spoken_duration(left)} left")
