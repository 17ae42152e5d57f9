"""
What improving a run and distilling share: a work folder, in which models write translations shard by shard, so that an
interrupted command goes on where it was.
"""

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ...errors import Stopped, UserError
from ...files import read_json, write_lines, write_whole
from ...recipe.reading import MAY_DIFFER_WITHIN_RUN, differing_keys, load_recipe
from ...recipe.schema import Recipe
from ...run.folder import RunFolder, holds_other_things
from ...run.log import format_duration
from ...run.processes import StopRequest, on_all, on_main
from ...run.records import RECIPE
from ...training.train import train

logger = logging.getLogger(__name__)

SHARD = 1000  # sentences: the most that an interruption costs each process

# Given sentences, the best translations of each, best first, or [""] for one that is not translated.
Translate = Callable[[Sequence[str]], list[list[str]]]


class WorkFolder:
    """
    A folder with what a command writes before its result, and the record of what it was started with.

    Args:
        identity: the name of the file with that record.
    """

    def __init__(self, path: Path, identity: str):
        str(path.resolve()).encode()  # fails for a name that is not UTF-8, which recipes cannot contain
        self.path, self._identity = path, path / identity
        self._folder = RunFolder(path)  # kept, since its lock ends with it

    def check(self, identity: dict[str, Any], advice: str) -> None:
        """Raise UserError with this advice if the folder was started with anything else."""
        if not self._identity.exists():
            return
        before = read_json(self._identity)
        if changed := [what for what in identity if before.get(what) != identity[what]]:
            raise UserError(f"{self.path} was started with other {', '.join(changed)}; {advice}")

    def start(self, identity: dict[str, Any], advice: str, write: Callable[[], None] = lambda: None) -> None:
        """Check, create and lock the folder; if it is new, write into it, then record what it was started with."""
        self.check(identity, advice)
        self._folder.lock()
        if not self._identity.exists():
            write()
            write_whole(self._identity, json.dumps(identity, indent=2))

    def release(self) -> None:
        """Let others use the folder."""
        self._folder.unlock()

    def pairs_file(self, name: str) -> Path:
        return self.path / "data" / f"{name}.jsonl"

    def write_pairs(self, name: str, columns: tuple[str, str], pairs: list[tuple[str, str]]) -> None:
        """Write pairs of source and target to `pairs_file`."""
        path = self.pairs_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = (json.dumps(dict(zip(columns, pair, strict=True)), ensure_ascii=False) for pair in pairs)
        write_whole(path, "".join(f"{row}\n" for row in rows))


class ShardedTranslation:
    """
    The translations of sentences, in a folder with a file for every 1,000 of them: a line for each sentence, with its
    translations, best first, separated by tabs.

    Args:
        sentences: must not contain line feeds.
        name: names this work in messages.
    """

    def __init__(self, folder: Path, sentences: Sequence[str], name: str):
        self.folder, self.sentences, self.name = folder, sentences, name
        self.count = -(-len(sentences) // SHARD)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.txt"

    def missing(self) -> list[int]:
        """The numbers of the shards that are still to be translated."""
        return [number for number in range(self.count) if not self._path(number).is_file()]

    def read(self) -> list[list[str]]:
        """
        All translations, in the order of the sentences.

        Raises:
            UserError: a shard does not have a line for each of its sentences.
        """
        lines = [self._path(number).read_text(encoding="utf-8").split("\n")[:-1] for number in range(self.count)]
        for number, shard in enumerate(lines):
            if len(shard) != len(self._sentences(number)):
                raise UserError(f"{self._path(number)}: the number of lines is wrong; delete it to translate again")
        return [line.split("\t") for line in itertools.chain.from_iterable(lines)]

    def _sentences(self, number: int) -> Sequence[str]:
        return self.sentences[number * SHARD : (number + 1) * SHARD]

    def complete(self, load: Callable[[], Translate], accelerator: Accelerator, stop: StopRequest) -> None:
        """
        Translate the missing shards. All processes call this together.

        Args:
            load: loads the model, which each process does for itself. What it returns may end early when asked to stop.

        Raises:
            Stopped: a process was asked to stop; finished shards are kept.
        """
        if not (missing := on_main(accelerator, self.missing)):
            return
        on_main(accelerator, lambda: self.folder.mkdir(parents=True, exist_ok=True))
        translate = load()

        def translate_shard(number: int) -> None:
            """Translate a shard and write it, unless this process is asked to stop meanwhile."""
            found = translate(self._sentences(number))
            if not stop:  # which ends decoding early, so that translations may be cut off
                write_lines(self._path(number), ["\t".join(text.replace("\t", " ") for text in row) for row in found])

        mine = missing[accelerator.process_index :: accelerator.num_processes]
        started = time.monotonic()
        rounds = -(-len(missing) // accelerator.num_processes)
        for done in range(rounds):  # shard by shard, so that no process waits hours for another
            now = mine[done : done + 1]  # empty on some processes in the last round
            on_all(accelerator, lambda now=now: list(map(translate_shard, now)))
            if stop.agreed(accelerator):
                raise Stopped
            left = (time.monotonic() - started) / (done + 1) * (rounds - done - 1)
            logger.info(f"{self.name}: {done + 1} of {rounds} parts, about {format_duration(left)} left")


def check_output(out: Path, final: Recipe) -> None:
    """Raise UserError if the folder of a run to be made contains a run with another recipe, or something else."""
    folder = RunFolder(out)
    if not folder.is_run():
        if out.exists() and (not out.is_dir() or holds_other_things(out)):
            raise UserError(f"--output {out} exists, and is not a run; choose another folder")
        return
    changed = sorted({*differing_keys(load_recipe(out / RECIPE), final)} - MAY_DIFFER_WITHIN_RUN)
    if changed:
        raise UserError(
            f"--output {out} contains a run with another recipe (it differs in {', '.join(changed)}); use the "
            "options that it was started with, or choose another folder"
        )


def train_or_resume(
    recipe: Recipe,
    accelerator: Accelerator,
    stop: StopRequest,
    command: str,
    push: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """
    Train a model, or resume its training. Returns the result of `train`.

    Args:
        command: for messages, the one that resumes.
    """
    logger.info(f"training {recipe.output_dir}")
    with stage(f"training {recipe.output_dir}", command):
        result = train(recipe, accelerator, "auto", stop=stop, push=push)
    accelerator.free_memory()
    return result


@contextmanager
def stage(what: str, command: str) -> Iterator[None]:
    """Add to errors of a stage how to resume."""
    try:
        yield
    except Stopped:
        raise Stopped(f"stopped while {what}; repeat the command to resume") from None
    except UserError as error:
        if "--resume" not in str(error):
            raise
        advice = f"(with scratch {command}, repeat the command instead of using --resume)"
        raise type(error)(f"{error} {advice}") from error
