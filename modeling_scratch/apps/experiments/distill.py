"""
Distil models into a student: a smaller or faster model that learns from their translations of the training sources, and
of further text, so that greedy search is nearly as good as their beam search.

This is sequence-level distillation (Kim and Rush 2016, https://arxiv.org/abs/1606.07947), here from the n best
translations of each sentence. A deep encoder with a decoder of one layer costs little quality and most of the decoding
time (Kasai et al. 2021, https://arxiv.org/abs/2006.10369).
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ...data.local_files import check_file, read_lines
from ...data.sources import load_pairs, sources_of
from ...errors import UserError
from ...files import one_line, sha256
from ...hub.card import check_license, license_of
from ...inference.engine import EngineName
from ...recipe import SOURCE, TARGET, find_recipe
from ...recipe.reading import apply_overrides, checked_recipe, load_recipe
from ...recipe.schema import HubSection, MixedSource, Recipe, TokenizerSection
from ...run.folder import WEIGHTS, RunFolder
from ...run.processes import StopRequest, advising_on_memory, on_main
from ...run.records import RECIPE, RunRecords
from ...training.finish import is_finished
from ...training.scoring import advice_to_halve
from .teachers import CONVERTED, load_teacher
from .work_folder import ShardedTranslation, WorkFolder, check_output, stage, train_or_resume

logger = logging.getLogger(__name__)

STUDENT = "student"  # in configuration/models
_IDENTITY = "distillation.json"  # in the work folder: what it was started with
_ADVICE = "use the options that it was started with, choose another --work, or delete it"
_PAIRS = "teacher"  # the file of what the teachers wrote


@dataclass(frozen=True)
class DistillationOptions:
    """
    What to distil, and how.

    Args:
        teachers: model folders or Hub names; several are an ensemble.
        out: the folder of the student.
        config: the recipe whose data and training the student has; None: that of the first teacher's run.
        n_best: how many translations of each sentence the student learns from.
        original: the share of the pairs of an epoch that are original.
        source_text: files of further text in the source language, one sentence per line.
        work: the folder of what the teachers write, which students of other shapes can use again; None: beside `out`.
        overrides: KEY=VALUE: of `data`, for both, the others for the student's recipe.
    """

    teachers: tuple[str, ...]
    out: Path
    config: str | None = None
    n_best: int = 4
    original: float = 0.2
    source_text: tuple[Path, ...] = ()
    work: Path | None = None
    overrides: tuple[str, ...] = ()


class DistillationPlan:
    """
    The files and recipes of a distillation.

    Attributes:
        recipe: the one whose data the teachers translate.
        final: the student's.

    Raises:
        UserError: there is no recipe, or it is for fine-tuning; its data cannot be used; a text is missing; an override
            is wrong; the output folder contains something else.
    """

    def __init__(self, options: DistillationOptions):
        self.options = options
        self.work = WorkFolder(options.work or Path(f"{options.out.resolve()}-work"), _IDENTITY)
        own = Path(options.teachers[0]) / RECIPE
        if options.config is None and not own.is_file():
            raise UserError(
                f"{options.teachers[0]} has no {RECIPE}; name the recipe whose data to translate with --config"
            )
        if self.work.path.resolve() == options.out.resolve():
            raise UserError(f"--work {self.work.path} is the student's folder; choose another")
        if not 0 <= options.original < 1:
            raise UserError(f"--original {options.original:g}: it must be at least 0, and less than 1")
        shared = [each for each in options.overrides if each.partition("=")[0].startswith(("data", "seed"))]
        self.recipe = load_recipe(own if options.config is None else find_recipe(options.config), shared)
        if options.config is None and self.recipe.model.start_from:
            raise UserError(
                f"{options.teachers[0]} was fine-tuned, and its recipe is too short for a student, which begins with "
                "random weights; name another with --config"
            )
        data = self.recipe.data
        if data.streaming or data.feature_columns:
            key = "data.streaming" if data.streaming else "data.feature_columns"
            raise UserError(f"{key}: only pairs in memory, without features, can be distilled")
        for path in options.source_text:
            check_file(path)
        self.final = self._student(own.parent if options.config is None else None)
        check_output(options.out, self.final)

    def _student(self, run: Path | None) -> Recipe:
        """
        The student's recipe: the other one with its model, greedy search, and the teachers' pairs. An epoch has as many
        pairs as there are sentences to translate, so that lengths and intervals mean the same.

        Args:
            run: the teacher's, whose tokenizer the student has; None: it has its own.
        """
        options, data = self.options, self.recipe.data
        named = dict(zip(("source_column", "target_column"), self.columns(), strict=True))
        pairs = MixedSource(
            files=str(self.work.pairs_file(_PAIRS).resolve()),
            **named if len(set(data.names)) == 1 else {},
            weight=(1 - options.original) / options.n_best,
            translated_by=[_without_folder(name) for name in options.teachers],
        )
        weighted = (entry.model_copy(update={"weight": entry.weight * options.original}) for entry in data.mix)
        mix = list(weighted) if options.original else []
        # Chosen by greedy search, by which it will be used.
        evaluation: dict[str, Any] = {"num_beams": 1, "validation_beams": 1, "translate_every": 1}
        if data.languages and self.recipe.evaluation.metric == "loss":
            evaluation["metric"] = "bleu"
        changes: dict[str, Any] = {
            "output_dir": str(options.out),
            "data": data.model_copy(update={"weight": data.weight * options.original, "mix": [*mix, pairs]}),
            "evaluation": self.recipe.evaluation.model_copy(update=evaluation),
            "hub": HubSection(license=self._license()),
        }
        if run is not None:
            changes["tokenizer"] = TokenizerSection(existing=str(run.resolve()), shared=self.recipe.tokenizer.shared)
        content = self.recipe.model_copy(update=changes).model_dump(mode="json")
        content["model"] = {"config": STUDENT}
        given = [each for each in options.overrides if not each.partition("=")[0].startswith("data")]
        if fixed := next((each for each in given if each.startswith("output_dir=")), None):
            raise UserError(f"{fixed}: name the student's folder with --output")
        return checked_recipe(apply_overrides(content, given))

    def _license(self) -> str | None:
        """The license of all teachers, if they are known and the same: the student's words are theirs."""
        found = set()
        for name in self.options.teachers:
            folder = Path(name)
            run = RunRecords(folder) if (folder / RECIPE).is_file() else None
            license = license_of(folder, run)
            try:
                found.add(license and check_license(str(license)))
            except UserError:  # cards may have anything
                found.add(None)
        return found.pop() if len(found) == 1 else None

    def columns(self) -> tuple[str, str]:
        """The columns of the teachers' pairs."""
        names = self.recipe.data.names
        return names if len(set(names)) == 2 else (SOURCE, TARGET)

    def identity(self, sentences: list[str] | None = None) -> dict[str, Any]:
        """What decides the teachers' pairs. `sentences`: to translate; None: they are not compared."""
        options, data = self.options, self.recipe.data
        texts = {} if sentences is None else {"sentences": hashlib.sha256("\n".join(sentences).encode()).hexdigest()}
        return {
            "teachers": list(map(_fingerprint, options.teachers)),
            "languages": list(data.names),
            "n_best": options.n_best,
            "source_text": list(map(sha256, options.source_text)),
            "lengths": [data.max_source_tokens, self.final.evaluation.max_new_tokens],
            **texts,
        }

    def check_identity(self, sentences: list[str] | None = None) -> None:
        """Raise UserError if the work folder has what others wrote, or of other sentences."""
        self.work.check(self.identity(sentences), _ADVICE)

    def sentences(self) -> list[str]:
        """The sentences to translate, each once: the training sources, followed by further text."""
        data = self.recipe.data
        mix = [entry for entry in data.mix if entry.tag is None]
        untagged = data.model_copy(update={"mix": mix, "weight": data.weight if mix else 1.0})
        sources = map(one_line, sources_of(load_pairs(untagged, self.recipe.seed)["train"]))
        more = (line.strip() for path in self.options.source_text for line in read_lines(path))
        return [text for text in dict.fromkeys([*sources, *more]) if text]


def _without_folder(name: str) -> str:
    """A Hub name, or the last part of a folder's path."""
    return Path(name).resolve().name if Path(name).exists() else name


def _fingerprint(name: str) -> str:
    """What a teacher's translations depend on: the hash of its weights in a folder, or its name on the Hub."""
    files = [Path(name) / file for file in (WEIGHTS, CONVERTED) if (Path(name) / file).is_file()]
    files = files or sorted(Path(name).glob("*.safetensors")) or sorted(Path(name).glob("*.bin"))
    return " ".join(map(sha256, files)) or name


def distill(
    plan: DistillationPlan,
    accelerator: Accelerator,
    stop: StopRequest,
    engine: EngineName = "auto",
    push: Callable[[str], None] | None = None,
) -> dict[str, Any] | None:
    """
    Run the stages that are left, on all processes. Returns the result of `train`, or None if the student is finished.

    Args:
        engine: for teachers of this project.
        push: passed to `train`.

    Raises:
        Stopped: a process was asked to stop; the next call resumes.
        UserError: the work folder was started with other teachers, data or options.
    """
    on_main(accelerator, plan.check_identity)
    if on_main(accelerator, lambda: is_finished(plan.final)):
        return None
    if on_main(
        accelerator, lambda: not (plan.work.pairs_file(_PAIRS).is_file() and RunFolder(plan.options.out).is_run())
    ):
        _translate(plan, accelerator, stop, engine)
    return train_or_resume(plan.final, accelerator, stop, "distill", push)


def _translate(plan: DistillationPlan, accelerator: Accelerator, stop: StopRequest, engine: EngineName) -> None:
    """Have the teachers translate what is left, and write their pairs."""
    options, recipe, evaluation = plan.options, plan.recipe, plan.final.evaluation
    sentences = on_main(accelerator, plan.sentences)
    on_main(accelerator, lambda: plan.work.start(plan.identity(sentences), _ADVICE))
    name = f"translating by {' + '.join(map(_without_folder, options.teachers))}"
    translations = ShardedTranslation(plan.work.path / "translations", sentences, name)

    def load():
        languages, longest = recipe.data.languages, recipe.data.max_source_tokens
        limits = (options.n_best, longest, evaluation.max_new_tokens, evaluation.batch_limits())
        return load_teacher(options.teachers, languages, *limits, engine, accelerator.device, stop)

    with (
        stage(name, "distill"),
        advising_on_memory(accelerator, name, advice_to_halve(evaluation)),
        stop,
    ):
        translations.complete(load, accelerator, stop)
    on_main(accelerator, lambda: _write_pairs(plan, translations))
    on_main(accelerator, plan.work.release)  # so that another student can use it
    accelerator.free_memory()


def _write_pairs(plan: DistillationPlan, translations: ShardedTranslation) -> None:
    """Write a pair for each translation, unless that is done, and a student may be reading them."""
    if plan.work.pairs_file(_PAIRS).is_file():
        return
    rows = zip(translations.sentences, translations.read(), strict=True)
    pairs = [(source, text) for source, row in rows for text in row if text]
    if not pairs:
        raise UserError("the teachers translated nothing: all outputs are empty or cut at their maximum length")
    plan.work.write_pairs(_PAIRS, plan.columns(), pairs)
    logger.info(f"{len(pairs):,} pairs by the teachers, of {len(translations.sentences):,} sentences")
