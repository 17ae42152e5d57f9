"""Plan how a finished run is improved: which models, by which recipes, from which files."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..data.lines import check_file
from ..data.sources import source_of
from ..errors import UserError
from ..files import read_json, sha256, write_whole
from ..hub.run_records import RunRecords
from ..model.configuration_scratch import ScratchConfig
from ..recipe.reading import ALIKE, adopts_two, apply_overrides, checked_recipe, differing_keys, load_recipe
from ..recipe.schema import EMBEDDED_CORPUS, DataSection, HubSection, MixedSource, Recipe, TokenizerSection
from ..runs.checkpoint_store import WEIGHTS
from ..runs.folder import RECIPE, RunFolder, holds_other_things
from .comparison import read_run
from .finish import has_results

TAG = "<bt>"  # before a source sentence that was back-translated from monolingual text
FORWARD, BACKWARD = "forward", "backward"
_BEGUN = "improvement.json"  # in the folder of models and translations: what it was begun with
Pairs = tuple[list[str], list[str]]  # sources and targets
_LESS_DROPOUT = 2 / 3  # the improved model's, as a share of the run's, chosen for fewer pairs (docs/quality.md)
_FIXED = ("data", "tokenizer", "output_dir", "model.start_from")  # what an override must not change


@dataclass(frozen=True)
class ImprovementOptions:
    """
    What to improve, and with what.

    Args:
        run: the folder of a finished run.
        out: the folder of the improved run.
        seeds: the number of models per direction; the run itself is the first forward one.
        source_text, target_text: files of monolingual text, one sentence per line.
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


class ImprovementPlan:
    """
    The files and recipes of an improvement.

    Raises:
        UserError: the run is not finished, or is of a kind that cannot be improved; a text is missing; an override is
            wrong; the folder to write is not empty, or holds another run.
    """

    def __init__(self, options: ImprovementOptions):
        self.options = options
        self.work = options.out.resolve().with_name(f"{options.out.resolve().name}-work")
        self._folder = RunFolder(self.work)  # with it goes its lock
        self.records = _records_to_improve(options.run)
        self.recipe = self.records.recipe
        self.languages = (self.recipe.data.source_language, self.recipe.data.target_language)
        for path in (*options.source_text, *options.target_text):
            check_file(path)
        self.final = self._final_recipe()
        self._check_output()

    def models(self) -> Iterator[tuple[str, int]]:
        """Direction and number, from 1, of each model that translates."""
        for number in range(1, self.options.seeds + 1):
            yield BACKWARD, number
            yield FORWARD, number

    def folder(self, direction: str, number: int) -> Path:
        """The folder of a model that translates."""
        return self.options.run if (direction, number) == (FORWARD, 1) else self.work / f"{direction}-{number}"

    def pairs_file(self, name: str) -> Path:
        """The table of the run's own `train` or `validation` pairs, or of `synthetic` or `back-translated` ones."""
        return self.work / "data" / f"{name}.jsonl"

    def recipe_of(self, direction: str, number: int) -> Recipe:
        """The recipe of a model that translates: the run's, on the same pairs, with another seed or direction."""
        recipe, data, (source, target) = self.recipe, self.recipe.data, self.languages
        limits = (data.max_source_tokens, data.max_target_tokens)
        if direction == BACKWARD:
            source, target, limits = target, source, limits[::-1]
            if adopts_two(recipe):  # each of its vocabularies is of the other language
                recipe = recipe.model_copy(update={"tokenizer": TokenizerSection(shared=False)})
        section = DataSection(
            source_language=source,
            target_language=target,
            max_source_tokens=limits[0],
            max_target_tokens=limits[1],
            num_workers=self.final.data.num_workers,
            train_files=str(self.pairs_file("train")),
            validation_files=str(self.pairs_file("validation")),
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
        The recipe of the improved model: the run's, with its vocabulary, more pairs and updates, and less dropout. If
        the run has two vocabularies, new ones are trained.
        """
        recipe, options = self.recipe, self.options
        for override in options.overrides:
            key = override.partition("=")[0]
            is_fixed = key.startswith(_FIXED) and key != "data.num_workers"
            if is_fixed or (key == "seed" and _pairs_depend_on_seed(recipe.data, recipe.seed)):
                raise UserError(f"{override}: the improved model has the run's own {key}: its pairs depend on it")
        mix = [MixedSource(files=str(self.pairs_file("synthetic")))]
        if options.target_text:
            mix.append(MixedSource(files=str(self.pairs_file("back-translated")), tag=TAG))
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
            changes["tokenizer"] = recipe.tokenizer.model_copy(update={"existing": str(options.run.resolve())})
        content = recipe.model_copy(update=changes).model_dump(mode="json")
        return checked_recipe(apply_overrides(content, options.overrides))

    def _check_output(self) -> None:
        out = self.options.out
        if out.resolve() == self.options.run.resolve():
            raise UserError(f"--output {out}: it must be another folder than the run's")
        folder = RunFolder(out)
        if not folder.is_run():
            if out.exists() and (not out.is_dir() or holds_other_things(out)):
                raise UserError(f"--output {out}: there is something else; choose another folder")
            return
        changed = sorted({*differing_keys(load_recipe(out / RECIPE), self.final)} - ALIKE)
        if changed:
            raise UserError(
                f"--output {out} holds a run of another recipe (it differs in {', '.join(changed)}); give the options "
                "that it was begun with, or choose another folder"
            )

    # -- what there is already ---------------------------------------------------------------------------------------

    def has_model(self, direction: str, number: int) -> bool:
        """Whether a model that translates is finished; `check_begun` says whether it is of this improvement."""
        return has_results(self.folder(direction, number))

    def check_begun(self, pairs: dict[str, Pairs] | None = None) -> None:
        """
        UserError if the improvement was begun with other pairs, another run or other options.

        Args:
            pairs: the run's, for training and validation; None: they are not compared.
        """
        if not (mark := self.work / _BEGUN).exists():
            return
        before, now = read_json(mark), self._identity(pairs)
        if changed := [what for what in now if before.get(what) != now[what]]:
            raise UserError(
                f"{self.work} was begun with other {', '.join(changed)}; give the options that it was begun with, "
                "choose another --output, or delete it to begin anew"
            )

    def begin(self, pairs: dict[str, Pairs]) -> None:
        """Make the folder of models and translations, lock it, and write the run's pairs into it."""
        self.check_begun(pairs)
        self._folder.make()
        if not (mark := self.work / _BEGUN).exists():
            for split, sides in pairs.items():
                self.write_pairs(split, list(zip(*sides, strict=True)))
            write_whole(mark, json.dumps(self._identity(pairs), indent=2))

    def _identity(self, pairs: dict[str, Pairs] | None) -> dict[str, Any]:
        options = {key: value for key, value in asdict(self.options).items() if key not in ("run", "out")}
        options["overrides"] = [each for each in options["overrides"] if each.partition("=")[0] not in ALIKE]
        for key in ("source_text", "target_text"):
            options[key] = [sha256(path) for path in options[key]]
        return {
            **json.loads(json.dumps(options)),  # lists for tuples
            **({} if pairs is None else {"pairs": hashlib.sha256(json.dumps(pairs).encode()).hexdigest()}),
            "weights of the run": sha256(self.options.run / WEIGHTS),
        }

    def write_pairs(self, name: str, pairs: list[tuple[str, str]]) -> None:
        """Write a table of sources and targets."""
        path = self.pairs_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = (json.dumps(dict(zip(self.languages, pair, strict=True)), ensure_ascii=False) for pair in pairs)
        write_whole(path, "".join(f"{row}\n" for row in rows))


def _pairs_depend_on_seed(data: DataSection, seed: int) -> bool:
    """Whether another seed would hold out other pairs, or make another corpus."""
    return source_of("validation", data, seed) is None or (data.name == EMBEDDED_CORPUS and not data.train_files)


def _records_to_improve(run: Path) -> RunRecords:
    """The records of a finished run. UserError if it is not finished, or of a kind that cannot be improved."""
    records = read_run(run, going_on=True)
    if not records.finished:
        raise UserError(f"{run}: this run is not finished; scratch train --resume finishes it")
    recipe = records.recipe
    if recipe.data.streaming or recipe.data.mix:
        key = "data.streaming" if recipe.data.streaming else "data.mix"
        raise UserError(f"{run}: it was trained with {key}; only a run on one set of pairs in memory can be improved")
    if recipe.model.start_from:
        raise UserError(f"{run}: it was fine-tuned from {recipe.model.start_from}; improve a run from random weights")
    return records
