"""
Improve a finished run with its own data: models for both directions translate the training pairs, and a new model
learns from the originals and all translations.

This is data diversification (Nguyen et al. 2020, https://arxiv.org/abs/1911.01986). Translating the training pairs with
models of the same direction is sequence-level distillation (Kim and Rush 2016, https://arxiv.org/abs/1606.07947), with
models of the opposite direction back-translation (Sennrich et al. 2016, https://arxiv.org/abs/1511.06709). Monolingual
text is translated too; back-translations of it are tagged (Caswell et al. 2019, https://arxiv.org/abs/1906.06442).
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ...data.local_files import check_file, read_lines
from ...data.sources import load_pairs, source_of
from ...data.tokenizer import texts
from ...errors import UserError
from ...files import one_line, sha256
from ...inference.engine import EngineName
from ...model.configuration_scratch import ScratchConfig
from ...recipe.reading import MAY_DIFFER_WITHIN_RUN, adopts_two, apply_overrides, checked_recipe
from ...recipe.schema import EMBEDDED, DataSection, HubSection, MixedSource, Recipe, TokenizerSection
from ...run.folder import WEIGHTS
from ...run.processes import StopRequest, advising_on_memory, on_main
from ...run.records import RunRecords
from ...training.finish import has_results, is_finished
from ...training.scoring import advice_to_halve
from .compare import read_run
from .teachers import EngineTeacher, load_engine
from .work_folder import SHARD, ShardedTranslation, WorkFolder, check_output, stage, train_or_resume

logger = logging.getLogger(__name__)

Pairs = tuple[list[str], list[str]]  # sources and targets

TAG = "<bt>"  # precedes a source sentence that was back-translated from monolingual text
FORWARD, BACKWARD = "forward", "backward"
_IDENTITY = "improvement.json"  # in the work folder: the data and options that it was started with
_ADVICE = "use the options that it was started with, choose another --output, or delete the folder to start again"
_LESS_DROPOUT = 2 / 3  # of the run's, since the improved model has more pairs (docs/lab/quality.md)
_FIXED = ("data", "tokenizer", "output_dir", "model.start_from")  # keys that overrides must not change
_SAMPLE = 64  # sentences that are translated to estimate the time


@dataclass(frozen=True)
class ImprovementOptions:
    """
    What to improve, and how.

    Args:
        run: the folder of a finished run.
        out: the folder of the improved run.
        seeds: the number of models per direction, including the run itself, which is the first forward model.
        source_text, target_text: files of monolingual text, one sentence per line.
        length: the improved model's updates, as a multiple of the run's.
        overrides: KEY=VALUE for the improved model's recipe.
        engine: what translates.
    """

    run: Path
    out: Path
    seeds: int = 2
    source_text: tuple[Path, ...] = ()
    target_text: tuple[Path, ...] = ()
    length: float = 2.0
    overrides: tuple[str, ...] = ()
    engine: EngineName = "auto"


class ImprovementPlan:
    """
    The files and recipes of an improvement. Models and translations are in a work folder, beside the output.

    Raises:
        UserError: the run is not finished, or cannot be improved; a text is missing; an override is wrong; the output
            folder contains something else.
    """

    def __init__(self, options: ImprovementOptions):
        self.options = options
        str(options.run.resolve()).encode()  # fails for a name that is not UTF-8, which recipes cannot contain
        self.work = WorkFolder(Path(f"{options.out.resolve()}-work"), _IDENTITY)
        self.records = _records_to_improve(options.run)
        self.recipe = self.records.recipe
        if self.recipe.data.languages is None:
            raise UserError(f"{options.run} has no languages; only translators can be improved")
        if self.recipe.data.feature_columns:
            raise UserError(f"{options.run} has data.feature_columns; only models without features can be improved")
        self.languages = self.recipe.data.languages
        for path in (*options.source_text, *options.target_text):
            check_file(path)
        self.final = self._final_recipe()
        self._check_output()

    def models(self) -> Iterator[tuple[str, int]]:
        """The direction and the number, from 1, of each model that translates."""
        for number in range(1, self.options.seeds + 1):
            yield BACKWARD, number
            yield FORWARD, number

    def folder(self, direction: str, number: int) -> Path:
        """The folder of a model that translates."""
        return self.options.run if (direction, number) == (FORWARD, 1) else self.work.path / f"{direction}-{number}"

    def recipe_of(self, direction: str, number: int) -> Recipe:
        """The recipe of a model that translates: the run's, on the same pairs, with a different seed or direction."""
        recipe, data, (source, target) = self.recipe, self.recipe.data, self.languages
        limits = (data.max_source_tokens, data.max_target_tokens)
        if direction == BACKWARD:
            source, target, limits = target, source, limits[::-1]
            if adopts_two(recipe):  # its vocabularies belong to the other side, so new ones are trained
                recipe = recipe.model_copy(update={"tokenizer": TokenizerSection(shared=False)})
        section = DataSection(
            source_language=source,
            target_language=target,
            max_source_tokens=limits[0],
            max_target_tokens=limits[1],
            num_workers=self.final.data.num_workers,
            train_files=str(self.work.pairs_file("train")),
            validation_files=str(self.work.pairs_file("validation")),
        )
        evaluation = {"also": [], "alignments": False} | self.final.evaluation.batch_limits()
        changes = {
            "output_dir": str(self.folder(direction, number)),
            "data": section,
            "seed": recipe.seed + number - 1,
            "optimization": recipe.optimization.model_copy(
                update={"gradient_accumulation_steps": self.final.optimization.gradient_accumulation_steps}
            ),
            "evaluation": recipe.evaluation.model_copy(update=evaluation),
            "hub": HubSection(),
            "trackers": [],
        }
        return recipe.model_copy(update=changes)

    def _final_recipe(self) -> Recipe:
        """
        The recipe of the improved model: the run's, with the run's vocabulary, more pairs and updates, and less
        dropout. If the run has two vocabularies, new ones are trained.
        """
        recipe, options = self.recipe, self.options
        for override in options.overrides:
            key = override.partition("=")[0]
            is_fixed = key.startswith(_FIXED) and key != "data.num_workers"
            if is_fixed or (key == "seed" and _pairs_depend_on_seed(recipe.data, recipe.seed)):
                raise UserError(f"{override}: the improved model must keep the run's {key}, on which its pairs depend")
        mix = [MixedSource(files=str(self.work.pairs_file("synthetic")))]
        if options.target_text:
            mix.append(MixedSource(files=str(self.work.pairs_file("back-translated")), tag=TAG))
        updates = {"max_epochs": None, "max_steps": round(options.length * self.records.updates)}
        architecture = {"dropout": ScratchConfig().dropout} | recipe.model.overrides
        architecture["dropout"] = round(_LESS_DROPOUT * architecture["dropout"], 3)
        changes: dict[str, Any] = {
            "output_dir": str(options.out),
            "model": recipe.model.model_copy(update={"overrides": architecture}),
            "data": recipe.data.model_copy(update={"mix": mix}),
            "optimization": recipe.optimization.model_copy(update=updates),
            "hub": HubSection(),
        }
        if recipe.tokenizer.shared:
            changes["tokenizer"] = TokenizerSection(existing=str(options.run.resolve()))
        content = recipe.model_copy(update=changes).model_dump(mode="json")
        return checked_recipe(apply_overrides(content, options.overrides))

    def _check_output(self) -> None:
        out = self.options.out
        if out.resolve() == self.options.run.resolve():
            raise UserError(f"--output {out} is the run's own folder; choose another")
        check_output(out, self.final)

    # -- the work folder -----------------------------------------------------------------------------------------------

    def has_model(self, direction: str, number: int) -> bool:
        """Whether a model that translates is finished; `check_identity` makes sure that it is of this improvement."""
        return has_results(self.folder(direction, number))

    def check_identity(self, pairs: dict[str, Pairs] | None = None) -> None:
        """
        Raise UserError if the work folder was started with a different run, other pairs or other options.

        Args:
            pairs: the run's pairs for training and validation; None: they are not compared.
        """
        self.work.check(self._identity(pairs), _ADVICE)

    def start(self, pairs: dict[str, Pairs]) -> None:
        """Create the work folder, lock it, and write the run's pairs into it."""

        def write() -> None:
            for split, sides in pairs.items():
                self.work.write_pairs(split, self.languages, list(zip(*sides, strict=True)))

        self.work.start(self._identity(pairs), _ADVICE, write)

    def _identity(self, pairs: dict[str, Pairs] | None) -> dict[str, Any]:
        options = {key: value for key, value in asdict(self.options).items() if key not in ("run", "out", "engine")}
        options["overrides"] = [
            override for override in options["overrides"] if override.partition("=")[0] not in MAY_DIFFER_WITHIN_RUN
        ]
        for key in ("source_text", "target_text"):
            options[key] = [sha256(path) for path in options[key]]
        return {
            **json.loads(json.dumps(options)),  # with lists in place of tuples, as in a file
            **({} if pairs is None else {"pairs": hashlib.sha256(json.dumps(pairs).encode()).hexdigest()}),
            "weights of the run": sha256(self.options.run / WEIGHTS),
        }


def _pairs_depend_on_seed(data: DataSection, seed: int) -> bool:
    """Whether a different seed would hold out different pairs or make a different corpus."""
    return source_of("validation", data, seed) is None or (data.name in EMBEDDED and not data.train_files)


def _records_to_improve(run: Path) -> RunRecords:
    """The records of a run. Raises UserError if it is not finished or cannot be improved."""
    records = read_run(run)
    if not records.finished:
        raise UserError(f"{run} is not finished; scratch train --resume finishes it")
    recipe = records.recipe
    if recipe.data.streaming or recipe.data.mix:
        key = "data.streaming" if recipe.data.streaming else "data.mix"
        raise UserError(f"{run} was trained with {key}; only a run on a single set of pairs in memory can be improved")
    if recipe.model.start_from:
        raise UserError(f"{run} was fine-tuned from {recipe.model.start_from}; only a run from scratch can be improved")
    return records


def improve(
    plan: ImprovementPlan, accelerator: Accelerator, stop: StopRequest, push: Callable[[str], None] | None = None
) -> dict[str, Any] | None:
    """
    Run the stages that are left, on all processes. Returns the result of `train`, or None if the improved model is
    already finished.

    Args:
        push: passed to `train` for the improved model.

    Raises:
        Stopped: a process was asked to stop; the next call resumes.
        UserError: the work folder was started with other data or options.
    """
    if on_main(accelerator, lambda: is_finished(plan.final)):
        on_main(accelerator, plan.check_identity)
        return None
    pairs = on_main(accelerator, lambda: _pairs(plan))
    on_main(accelerator, lambda: plan.start(pairs))
    translations = _translations(plan, pairs["train"])
    for model, by_model in translations.items():
        recipe = plan.recipe_of(*model)
        if not on_main(accelerator, lambda model=model: plan.has_model(*model)):
            train_or_resume(recipe, accelerator, stop, "improve")
        name, advice = by_model.name, advice_to_halve(recipe.evaluation)
        with stage(name, "improve"), advising_on_memory(accelerator, name, advice), stop:
            translate_by(recipe, by_model, accelerator, stop, plan.options.engine)
    on_main(accelerator, lambda: _merge(plan, pairs["train"], translations))
    return train_or_resume(plan.final, accelerator, stop, "improve", push)


def translate_by(
    recipe: Recipe, sentences: ShardedTranslation, accelerator: Accelerator, stop: StopRequest, engine: EngineName
) -> None:
    """
    Complete translations by the model in a recipe's folder. Sentences of more than `data.max_source_tokens`, which
    training drops too, get empty ones.
    """

    def load() -> EngineTeacher:
        return _teacher(recipe.output_dir, recipe, accelerator, stop, engine)

    sentences.complete(load, accelerator, stop)


def _teacher(
    folder: str, recipe: Recipe, accelerator: Accelerator, stop: StopRequest, engine: EngineName
) -> EngineTeacher:
    loaded = load_engine([folder], engine, accelerator.device)
    return EngineTeacher(loaded, recipe.data.max_source_tokens, recipe.evaluation.batch_limits(), stop)


def stages(plan: ImprovementPlan, accelerator: Accelerator) -> list[tuple[str, float | None]]:
    """
    The stages, each with its estimated seconds, or None if it is done. Estimates are from the training time of the run
    and from translating a few sentences on this machine.
    """
    training = plan.records.train.get("seconds", 0.0)
    final = (f"train {plan.options.out}", plan.options.length * training)
    if is_finished(plan.final):
        plan.check_identity()
        return [(final[0], None)]
    pairs = _pairs(plan)
    plan.check_identity(pairs)
    a_sentence = _seconds_a_sentence(plan, pairs["train"], accelerator) / accelerator.num_processes
    found = []
    for (direction, number), translations in _translations(plan, pairs["train"]).items():
        if plan.folder(direction, number) != plan.options.run:
            found.append((f"train {direction}-{number}", None if plan.has_model(direction, number) else training))
        left = min(len(translations.missing()) * SHARD, len(translations.sentences))
        what = f"translate {len(translations.sentences):,} sentences by {direction}-{number}"
        found.append((what, left * a_sentence if left else None))
    return [*found, final]


def _seconds_a_sentence(plan: ImprovementPlan, pairs: Pairs, accelerator: Accelerator) -> float:
    """Seconds to translate a sentence, measured on a few sentences with the run's own model."""
    sample = pairs[0][:: -(-len(pairs[0]) // _SAMPLE)]
    translate = _teacher(str(plan.options.run), plan.final, accelerator, StopRequest(), plan.options.engine)
    sample = [text for text in translate.fitting(sample) if text]
    translate(sample[:2])  # the first call is slower
    started = time.perf_counter()
    translate(sample)
    return (time.perf_counter() - started) / max(1, len(sample))


def _pairs(plan: ImprovementPlan) -> dict[str, Pairs]:
    """The run's pairs for training and validation, without line breaks in sentences."""
    pairs = load_pairs(plan.recipe.data, plan.recipe.seed)
    return {
        split: tuple(list(map(one_line, side)) for side in texts(pairs[split])) for split in ("train", "validation")
    }


def _translations(plan: ImprovementPlan, pairs: Pairs) -> dict[tuple[str, int], ShardedTranslation]:
    """The translations by each model: of its side of the training pairs, followed by monolingual text."""
    more = {FORWARD: plan.options.source_text, BACKWARD: plan.options.target_text}
    sentences = {
        direction: [*side, *(line.strip() for path in more[direction] for line in read_lines(path))]
        for direction, side in zip((FORWARD, BACKWARD), pairs, strict=True)
    }
    found = {}
    for direction, number in plan.models():
        name = f"{direction}-{number}"
        folder = plan.work.path / "translations" / name
        found[direction, number] = ShardedTranslation(folder, sentences[direction], f"translating by {name}")
    return found


def _merge(plan: ImprovementPlan, pairs: Pairs, translations: dict[tuple[str, int], ShardedTranslation]) -> None:
    """Write the new pairs, without duplicates and without those that the training data already has."""
    known = set(zip(*pairs, strict=True))
    synthetic: dict[tuple[str, str], None] = {}
    tagged: dict[tuple[str, str], None] = {}
    for (direction, _), by_model in translations.items():
        for index, (text, (made, *_)) in enumerate(zip(by_model.sentences, by_model.read(), strict=True)):
            pair = (text, made) if direction == FORWARD else (made, text)
            into = tagged if direction == BACKWARD and index >= len(pairs[0]) else synthetic
            if text and made and pair not in known:
                into[pair] = None
    if not synthetic or (plan.options.target_text and not tagged):
        raise UserError("the models made no new pairs, so there is nothing more to learn")
    plan.work.write_pairs("synthetic", plan.languages, list(synthetic))
    if plan.options.target_text:
        plan.work.write_pairs("back-translated", plan.languages, list(tagged))
    logger.info(f"made {len(synthetic) + len(tagged):,} new pairs from {len(pairs[0]):,}")
