"""Translate a whole corpus on all processes, each sentence once, in shards that survive an interruption."""

import hashlib
import itertools
import logging
import time
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import Stopped, UserError
from ..files import write_lines, write_whole
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
        """
        The numbers of the shards that are still to be translated.

        Raises:
            UserError: the folder has translations of other sentences.
        """
        self._check()
        return [number for number in range(self.count) if not self._path(number).is_file()]

    def read(self) -> list[str]:
        """
        All translations, in the order of the sentences.

        Raises:
            UserError: they are of other sentences, or a shard has other lines than were written.
        """
        self._check()
        lines = [self._path(number).read_text(encoding="utf-8").split("\n")[:-1] for number in range(self.count)]
        for number, shard in enumerate(lines):
            if len(shard) != len(self._sentences(number)):
                raise UserError(f"{self._path(number)}: {len(shard)} lines; delete it, and it is translated again")
        return list(itertools.chain.from_iterable(lines))

    def _sentences(self, number: int) -> Sequence[str]:
        return self.sentences[number * SHARD : (number + 1) * SHARD]

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()

    def _check(self) -> None:
        mark = self.folder / _SOURCE
        if mark.exists() and mark.read_text(encoding="utf-8") != self._digest:
            raise UserError(f"{self.folder} holds translations of other sentences; delete it to translate anew")

    def _open(self) -> None:
        self._check()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / _SOURCE, self._digest)

    def complete(
        self,
        model: PreTrainedModel,
        tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
        accelerator: Accelerator,
        stop: StopRequest,
        longest: int,
        **options,
    ) -> None:
        """
        Translate what is missing. All processes call this together, each with the whole model.

        Args:
            longest: sentences of more source tokens are left empty.
            options: of `evaluation.translate`.

        Raises:
            Stopped: a process was asked to stop; the shards that are complete stay.
            UserError: the folder cannot be used.
        """
        on_main(accelerator, self._open)
        missing = on_main(accelerator, self.missing)
        mine = missing[accelerator.process_index :: accelerator.num_processes]
        began = time.monotonic()
        rounds = -(-len(missing) // accelerator.num_processes)
        work = partial(self._translate, model=model, tokenizers=tokenizers, stop=stop, longest=longest, options=options)
        for done in range(rounds):  # together, so that none waits hours for another
            now = mine[done : done + 1]  # nothing, on some processes, in the last round
            together(accelerator, lambda now=now: list(map(work, now)))
            if stop.agreed(accelerator):
                raise Stopped
            left = (time.monotonic() - began) / (done + 1) * (rounds - done - 1)
            logger.info(f"{self.name}: {done + 1} of {rounds} parts, about {spoken_duration(left)} left")

    def _translate(
        self,
        number: int,
        model: PreTrainedModel,
        tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
        stop: StopRequest,
        longest: int,
        options: dict[str, Any],
    ) -> None:
        """Translate a shard, and write it, unless the stop is asked for meanwhile."""
        sentences = self._sentences(number)
        lengths = [len(ids) for ids in tokenizers[0](list(sentences), verbose=False).input_ids]
        sentences = [text if length <= longest else "" for text, length in zip(sentences, lengths, strict=True)]
        translations = translate(
            model, *tokenizers, sentences, progress=None, stopping_criteria=[StopDecoding(stop)], **options
        )
        if not stop:  # otherwise the last sentences may be unfinished
            write_lines(self._path(number), translations)
