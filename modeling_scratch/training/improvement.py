"""
Improve a finished run from its own data: models of both directions translate the text, and one learns from it all.

This is data diversification (Nguyen et al. 2020, https://arxiv.org/abs/1911.01986). Translations by models of the same
direction are sequence-level distillation (Kim and Rush 2016, https://arxiv.org/abs/1606.07947), those of the opposite
direction back-translation (Sennrich et al. 2016, https://arxiv.org/abs/1511.06709), both of the training pairs. Text in
one language alone is translated too; what is back-translated from it is tagged (Caswell et al. 2019,
https://arxiv.org/abs/1906.06442).
"""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ..data.lines import check_file, read_lines
from ..data.sources import load_pairs
from ..data.tokenization import texts
from ..errors import Stopped, UserError
from ..files import write_whole
from ..hub.run_records import RunRecords
from ..loading import best_device, load_tokenizers, load_translator
from ..recipe.reading import apply_overrides, parse_recipe
from ..recipe.schema import DataSection, EvaluationSection, HubSection, MixedSource, Recipe
from ..runs.folder import RECIPE, RunFolder
from ..runs.metrics_file import read_metrics
from ..runs.processes import on_main
from ..runs.stopping import StopRequest
from .corpus_translation import SHARD, ShardedTranslation
from .evaluation import translate
from .finish import finish
from .loop import train
from .run import TrainingRun

logger = logging.getLogger(__name__)

TAG = "<bt>"  # before a source sentence that was translated from text in the target language alone
FORWARD, BACKWARD = "forward", "backward"
_SAMPLE = 64  # sentences that are translated to estimate the time


@dataclass(frozen=True)
class Sources:
    """
    What to improve, and with what.

    Args:
        run: the folder of a finished run.
        out: the folder of the improved run. What leads to it is beside it, in `work`.
        seeds: the number of models of each direction; the run itself is the first forward one.
        source_text, target_text: files with text of one language alone, a sentence a line.
        length: the improved model's updates, as a multiple of the run's.
        overrides: KEY=VALUE for the improved model's recipe.
    """

    run: Path
    out: Path
    seeds: int = 2
    source_text: tuple[Path, ...] = ()
    target_text: tuple[Path, ...] = ()
    length: float = 2.0
    overrides: tuple[str, ...] = ()

    @property
    def work(self) -> Path:
        """The folder of models and translations on the way; it may be deleted afterwards."""
        return self.out.with_name(f"{self.out.name}-work")


class Improvement:
    """
    The stages from a finished run to an improved one. Each continues where it was interrupted.

    Raises:
        UserError: the run is not finished, or is of a kind that cannot be improved in this way; a text is missing.
    """

    def __init__(self, sources: Sources):
        self.sources = sources
        self.records = _records_to_improve(sources.run)
        self.recipe = self.records.recipe
        data = self.recipe.data
        self.languages = (data.source_language, data.target_language)
        for path in (*sources.source_text, *sources.target_text):
            check_file(path)

    # -- the stages -------------------------------------------------------------------------------------------------

    def models(self) -> Iterator[tuple[str, int]]:
        """Direction and number of each model that translates, from 1."""
        for number in range(1, self.sources.seeds + 1):
            yield BACKWARD, number
            yield FORWARD, number

    def folder(self, direction: str, number: int) -> Path:
        """The folder of a model that translates."""
        return self.sources.run if (direction, number) == (FORWARD, 1) else self.sources.work / f"{direction}-{number}"

    def recipe_of(self, direction: str, number: int) -> Recipe:
        """The recipe of a model that translates: the run's on the same pairs, with another seed or direction."""
        recipe, data, (source, target) = self.recipe, self.recipe.data, self.languages
        limits = (data.max_source_tokens, data.max_target_tokens)
        if direction == BACKWARD:
            source, target, limits = target, source, limits[::-1]
        files = {f"{split}_files": str(self._pairs_file(split)) for split in ("train", "validation")}
        section = DataSection(
            source_language=source,
            target_language=target,
            max_source_tokens=limits[0],
            max_target_tokens=limits[1],
            num_workers=data.num_workers,
            **files,
        )
        changes = {"data": section, "seed": recipe.seed + number - 1, **self._quiet()}
        return recipe.model_copy(update={"output_dir": str(self.folder(direction, number)), **changes})

    def final_recipe(self) -> Recipe:
        """The recipe of the improved model: the run's with more pairs and updates, and the same vocabulary."""
        recipe, sources = self.recipe, self.sources
        mix = [MixedSource(files=str(self._made("synthetic")))]
        if sources.target_text:
            mix.append(MixedSource(files=str(self._made("back-translated")), tag=TAG))
        updates = {"max_epochs": None, "max_steps": round(sources.length * self.records.updates)}
        changes: dict[str, Any] = {
            "output_dir": str(sources.out),
            "data": recipe.data.model_copy(update={"mix": mix}),
            "optimization": recipe.optimization.model_copy(update=updates),
            "hub": HubSection(),
        }
        if recipe.tokenizer.shared:
            changes["tokenizer"] = recipe.tokenizer.model_copy(update={"existing": str(sources.run)})
        return parse_recipe(
            apply_overrides(recipe.model_copy(update=changes).model_dump(mode="json"), list(sources.overrides))
        )

    def _quiet(self) -> dict[str, Any]:
        """Sections of a recipe whose run is a means to an end."""
        evaluation = self.recipe.evaluation.model_dump() | {"also": []}
        return {"evaluation": EvaluationSection(**evaluation), "hub": HubSection(), "trackers": []}

    def _pairs_file(self, split: str) -> Path:
        return self.sources.work / "data" / f"{split}.jsonl"

    def _made(self, name: str) -> Path:
        return self.sources.work / "data" / f"{name}.jsonl"

    def _write_data(self, pairs: dict[str, tuple[list[str], list[str]]]) -> None:
        for split, sides in pairs.items():
            if not self._pairs_file(split).exists():
                self._write_pairs(self._pairs_file(split), list(zip(*sides, strict=True)))

    def _write_pairs(self, path: Path, pairs: list[tuple[str, str]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = (json.dumps(dict(zip(self.languages, pair, strict=True)), ensure_ascii=False) for pair in pairs)
        write_whole(path, "".join(f"{row}\n" for row in rows))

    def _pairs(self) -> dict[str, tuple[list[str], list[str]]]:
        """The run's own pairs."""
        pairs = load_pairs(self.recipe.data, self.recipe.seed)
        return {split: tuple(map(_in_one_line, texts(pairs[split]))) for split in ("train", "validation")}

    # -- to do it -----------------------------------------------------------------------------------------------------

    def run(self, accelerator: Accelerator, stop: StopRequest) -> dict[str, Any] | None:
        """
        Do all that is not done yet, on all processes. Returns what `finish` does; None if there was nothing to do.

        Raises:
            Stopped: a process was asked to stop.
        """
        pairs = on_main(accelerator, self._pairs)
        on_main(accelerator, lambda: self._write_data(pairs))
        for direction, number in self.models():
            if self.folder(direction, number) != self.sources.run:
                self._train(self.recipe_of(direction, number), accelerator, stop)
            self._translate(direction, number, pairs["train"], accelerator, stop)
        on_main(accelerator, lambda: self._merge(pairs["train"]))
        return self._train(self.final_recipe(), accelerator, stop)

    def _train(self, recipe: Recipe, accelerator: Accelerator, stop: StopRequest) -> dict[str, Any] | None:
        """Train a model, or what is left of it. None if it was finished before."""
        folder = RunFolder(recipe.output_dir)
        if on_main(accelerator, lambda: self._is_finished(folder.path)):
            return None
        logger.info(f"training {folder.path}")
        with _stage(f"training {folder.path}"):
            if on_main(accelerator, folder.can_go_on):
                run = TrainingRun.resume(recipe, accelerator, None, stop)
            else:  # an interrupt before the first checkpoint has left nothing to lose
                run = TrainingRun.begin(recipe, accelerator, on_main(accelerator, folder.is_run), stop)
            train(run)
            result = finish(run)
        accelerator.free_memory()
        return result

    def _is_finished(self, folder: Path) -> bool:
        """Whether a run has scored its final weights: the improved one on the test sets of the run to improve."""
        if not (folder / RECIPE).is_file():
            return False
        final = {_name(record) for record in read_metrics(folder, skip_damaged=True) if record.get("final")}
        return final >= {_name(record) for record in self.records.scored} if folder == self.sources.out else bool(final)

    def texts_of(self, direction: str, pairs: tuple[list[str], list[str]]) -> list[str]:
        """What a model translates: its side of the training pairs, then text of its language alone."""
        side, files = (0, self.sources.source_text) if direction == FORWARD else (1, self.sources.target_text)
        return [*pairs[side], *(line.strip() for path in files for line in read_lines(path))]

    def _translations(self, direction: str, number: int, pairs: tuple[list[str], list[str]]) -> ShardedTranslation:
        name = f"{direction}-{number}"
        return ShardedTranslation(
            self.sources.work / "translations" / name, self.texts_of(direction, pairs), f"translating by {name}"
        )

    def _translate(
        self,
        direction: str,
        number: int,
        pairs: tuple[list[str], list[str]],
        accelerator: Accelerator,
        stop: StopRequest,
    ) -> None:
        translations = self._translations(direction, number, pairs)
        if not on_main(accelerator, translations.missing):
            return
        section, folder = self.recipe.evaluation, str(self.folder(direction, number))
        model = load_translator(folder).to(accelerator.device)
        sizes = {"batch_size": section.batch_size, "batch_tokens": section.batch_tokens}
        with _stage(translations.name), stop:
            translations.complete(model, load_tokenizers(folder), accelerator, stop, **sizes)

    def _merge(self, pairs: tuple[list[str], list[str]]) -> None:
        """Write the pairs that were made, each once, without those that the data has already."""
        known = set(zip(*pairs, strict=True))
        synthetic: dict[tuple[str, str], None] = {}
        tagged: dict[tuple[str, str], None] = {}
        for direction, number in self.models():
            translations = self._translations(direction, number, pairs)
            for index, (text, made) in enumerate(zip(translations.sentences, translations.read(), strict=True)):
                pair = (text, made) if direction == FORWARD else (made, text)
                into = tagged if direction == BACKWARD and index >= len(pairs[0]) else synthetic
                if text and made and pair not in known:
                    into[pair] = None
        self._write_pairs(self._made("synthetic"), list(synthetic))
        if self.sources.target_text:
            self._write_pairs(self._made("back-translated"), list(tagged))
        logger.info(f"made {len(synthetic) + len(tagged):,} pairs beside the {len(pairs[0]):,} there are")

    # -- to say what it would do --------------------------------------------------------------------------------------

    def plan(self) -> list[tuple[str, float | None]]:
        """The stages, each with the seconds that it will take here, about; None if it is done."""
        pairs = self._pairs()["train"]
        training = self.records.train.get("seconds", 0.0)
        rates = self._seconds_a_sentence(pairs)
        stages: list[tuple[str, float | None]] = []
        for direction, number in self.models():
            folder, translations = self.folder(direction, number), self._translations(direction, number, pairs)
            if folder != self.sources.run:
                stages.append((f"train {direction}-{number}", None if self._is_finished(folder) else training))
            left = min(len(translations.missing()) * SHARD, len(translations.sentences))
            what = f"translate {len(translations.sentences):,} sentences by {direction}-{number}"
            stages.append((what, left * rates if left else None))
        final = None if self._is_finished(self.sources.out) else self.sources.length * training
        return [*stages, (f"train {self.sources.out}", final)]

    def _seconds_a_sentence(self, pairs: tuple[list[str], list[str]]) -> float:
        """By the run itself, from a few sentences."""
        folder, sample = str(self.sources.run), pairs[0][:: -(-len(pairs[0]) // _SAMPLE)]
        model, tokenizers = load_translator(folder).to(best_device()), load_tokenizers(folder)
        translate(model, *tokenizers, sample[:2], progress=None)  # the first call is slower
        began = time.perf_counter()
        translate(model, *tokenizers, sample, progress=None)
        return (time.perf_counter() - began) / len(sample)


def _in_one_line(sentences: list[str]) -> list[str]:
    return [" ".join(text.split("\n")) for text in sentences]


def _name(record: dict[str, Any]) -> str:
    """The name of the split or further test set that a record is about."""
    return record.get("name") or record["split"]


@contextmanager
def _stage(what: str) -> Iterator[None]:
    """Say of an interrupted stage how to go on."""
    try:
        yield
    except Stopped:
        raise Stopped(f"stopped while {what}; the same command continues") from None


def _records_to_improve(run: Path) -> RunRecords:
    """The records of a finished run. UserError if it is not finished, or its data are not plain pairs."""
    if not (run / RECIPE).is_file():
        raise UserError(f"{run}: not a run's folder: it has no {RECIPE}")
    records = RunRecords(run)
    if not records.finished:
        raise UserError(f"{run}: this run is not finished; scratch train --resume finishes it")
    recipe = records.recipe
    if recipe.data.streaming or recipe.data.mix:
        key = "data.streaming" if recipe.data.streaming else "data.mix"
        raise UserError(f"{run}: it was trained with {key}; only a run on one set of pairs in memory can be improved")
    if recipe.model.start_from:
        raise UserError(f"{run}: it was fine-tuned from {recipe.model.start_from}; improve a run from random weights")
    return records
