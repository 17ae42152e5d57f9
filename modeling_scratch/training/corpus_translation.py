"""Translate a whole corpus on all processes, each sentence once, in shards that survive an interruption."""

import itertools
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from accelerate import Accelerator

from ..errors import Stopped, UserError
from ..files import write_lines
from ..loading import load_tokenizers, load_translator
from ..model.batched_generation import tokenize
from ..recipe.schema import Recipe
from ..runs.processes import on_all, on_main
from ..runs.stopping import StopRequest
from .evaluation import translate
from .log import spoken_duration

logger = logging.getLogger(__name__)

SHARD = 1000  # sentences, the most that an interruption costs each process


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
        """
        All translations, in the order of the sentences.

        Raises:
            UserError: a shard does not have a line for each of its sentences.
        """
        lines = [self._path(number).read_text(encoding="utf-8").split("\n")[:-1] for number in range(self.count)]
        for number, shard in enumerate(lines):
            if len(shard) != len(self._sentences(number)):
                raise UserError(f"{self._path(number)}: {len(shard)} lines; delete it, and it is translated again")
        return list(itertools.chain.from_iterable(lines))

    def _sentences(self, number: int) -> Sequence[str]:
        return self.sentences[number * SHARD : (number + 1) * SHARD]

    def complete(self, recipe: Recipe, accelerator: Accelerator, stop: StopRequest) -> None:
        """
        Translate what is missing with the model in a recipe's folder. All processes call this together, each with the
        whole model. Sentences of more than `data.max_source_tokens`, which take no part in training either, get empty
        translations.

        Raises:
            Stopped: a process was asked to stop; the shards that are complete stay.
        """
        if not (missing := on_main(accelerator, self.missing)):
            return
        on_main(accelerator, lambda: self.folder.mkdir(parents=True, exist_ok=True))
        model = load_translator(recipe.output_dir).to(accelerator.device)
        tokenizers = load_tokenizers(recipe.output_dir)
        longest, limits = recipe.data.max_source_tokens, recipe.evaluation.batch_limits()

        def work(number: int) -> None:
            """Translate a shard and write it, unless asked to stop meanwhile."""
            sentences = self._sentences(number)
            lengths = [len(ids) for ids in tokenize(tokenizers[0], sentences, None)]
            sentences = [text if length <= longest else "" for text, length in zip(sentences, lengths, strict=True)]
            translations = translate(model, *tokenizers, sentences, stop=stop, **limits)
            if not stop:  # otherwise the last sentences may be unfinished
                write_lines(self._path(number), translations)

        mine = missing[accelerator.process_index :: accelerator.num_processes]
        began = time.monotonic()
        rounds = -(-len(missing) // accelerator.num_processes)
        for done in range(rounds):  # together, so that none waits hours for another
            now = mine[done : done + 1]  # nothing, on some processes, in the last round
            on_all(accelerator, lambda now=now: list(map(work, now)))
            if stop.agreed(accelerator):
                raise Stopped
            left = (time.monotonic() - began) / (done + 1) * (rounds - done - 1)
            logger.info(f"{self.name}: {done + 1} of {rounds} parts, about {spoken_duration(left)} left")
