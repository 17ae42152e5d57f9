"""Compare runs: their scores and costs, their recipes, means over seeds, the significance of differences."""

import statistics
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ...data.sources import load_split, sources_of
from ...data.tokenizer import texts
from ...errors import UserError
from ...metrics import NORMALIZED, bleu_significance, scores_in, title_of
from ...recipe.reading import WITHOUT_EFFECT, flat_recipe
from ...run.records import RECIPE, RunRecords, read_translations, scored_set

SO_FAR = "validation so far"  # in place of the test sets, for a run that is not finished


@dataclass
class RunSummary:
    """
    What is compared of a run, finished or not.

    Args:
        minutes, target_tokens: the training time and the tokens up to the last log line; None: no line was logged yet.
        scores: {split or test set: its record of scores}. The scores of an unfinished run are those of its best weights
            so far, with fewer beams and without intervals.
    """

    name: str
    folder: str
    finished: bool
    updates: int
    minutes: float | None
    target_tokens: int | None
    parameters: int | None
    scores: dict[str, dict[str, Any]]

    def numbers(self) -> dict[str, float]:
        """{column title: number}, without the numbers that are not known yet."""
        counts = {"updates": self.updates, "minutes": self.minutes}
        counts |= {"target tokens": self.target_tokens, "parameters": self.parameters}
        scores = {column(name, key): record[key] for name, record in self.scores.items() for key in scores_in(record)}
        scores |= self.noise_scores()
        return {name: value for name, value in (counts | scores).items() if value is not None}

    def noise_scores(self) -> dict[str, float]:
        """{column title: score}, by the first metric, of the kinds of noise on which the run was scored."""
        return {
            f"{column(name, key)}, {kind}": noisy[key]
            for name, record in self.scores.items()
            for kind, noisy in record.get("noise", {}).items()
            for key in scores_in(noisy)[:1]
        }


@dataclass
class Group:
    """
    Finished runs that differ only in their seeds.

    Args:
        numbers: {column title: (mean, standard deviation)} of the numbers that all runs have.
    """

    runs: list[str]
    numbers: dict[str, tuple[float, float]]


@dataclass
class Significance:
    """
    The difference between a run's BLEU and the first run's on the same sentences.

    Args:
        p_value: from sacreBLEU's paired bootstrap; 1 if there is no difference.
    """

    run: str
    test_set: str
    difference: float
    p_value: float
    signature: str


@dataclass
class Comparison:
    """
    What `compare` finds.

    Args:
        differences: {recipe key: its value in each run}, for the keys in which the recipes differ.
        notes: what cannot be compared, and why.
    """

    runs: list[RunSummary]
    groups: list[Group]
    differences: dict[str, list[Any]]
    significance: list[Significance] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def column(test_set: str, metric: str) -> str:
    """The title of a score's column."""
    return f"{test_set} {title_of(metric)}"


def read_runs(folders: list[Path]) -> dict[str, RunRecords]:
    """
    The records of runs by name. A run's name is that of its folder, or the given path if two folders have one name.

    Raises:
        UserError: there are fewer than two; one is given twice, is not a run, or cannot be read.
    """
    places = [folder.resolve() for folder in folders]
    if len(folders) < 2:
        raise UserError("give at least two runs to compare; for a single run, there is scratch figures curves")
    if twice := [str(folder) for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]:
        raise UserError(f"{' and '.join(twice)} are the same run; give each run once")
    names = [place.name for place in places]
    names = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    return {name: read_run(folder) for name, folder in zip(names, folders, strict=True)}


def read_run(folder: Path) -> RunRecords:
    """The records of a run, finished or not. Raises UserError if the folder is not a run or cannot be read."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if not (folder / RECIPE).is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no {RECIPE}")
    try:
        return RunRecords(folder, going_on=True)
    except ValueError as error:
        message = str(error)
        raise UserError(message if str(folder) in message else f"{folder}: {message}") from None


def compare(records: dict[str, RunRecords]) -> Comparison:
    """Compare runs that `read_runs` returned, the first with each of the others."""
    runs = [_summary(name, run) for name, run in records.items()]
    recipes = [_recipe(run) for run in records.values()]
    result = Comparison(runs, _groups(runs, recipes), _differences(recipes))
    _note_signatures(result)
    _test_significance(result, records)
    return result


def _summary(name: str, run: RunRecords) -> RunSummary:
    scores = {
        scored_set(record) if run.finished else SO_FAR: {key: record[key] for key in record if key != "samples"}
        for record in run.scored
    }
    seconds = run.train.get("seconds")
    return RunSummary(
        name=name,
        folder=str(run.folder),
        finished=run.finished,
        updates=run.updates,
        minutes=None if seconds is None else seconds / 60,
        target_tokens=run.train.get("target_tokens"),
        parameters=run.machine.get("parameters"),
        scores=scores,
    )


def _recipe(run: RunRecords) -> dict[str, Any]:
    """{dotted key: value} of a run's recipe, without keys that cannot change the model, with the precision it used."""
    recipe = {key: value for key, value in flat_recipe(run.recipe).items() if key not in WITHOUT_EFFECT}
    trained = run.machine.get("mixed_precision")
    return recipe | ({"precision": "float32" if trained == "no" else trained} if trained else {})


def _differences(recipes: list[dict[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    values = {key: [recipe.get(key) for recipe in recipes] for key in keys}
    differing = {key: row for key, row in values.items() if any(value != row[0] for value in row)}
    return {key: row for key, row in differing.items() if key != "seed" or len(differing) == 1}


def _groups(runs: list[RunSummary], recipes: list[dict[str, Any]]) -> list[Group]:
    alike: dict[str, list[int]] = {}
    for index, recipe in enumerate(recipes):
        if runs[index].finished:
            rest = sorted((key, value) for key, value in recipe.items() if key != "seed")
            alike.setdefault(repr(rest), []).append(index)
    groups = []
    for indices in alike.values():
        if len({recipes[index]["seed"] for index in indices}) < 2:
            continue
        found = [runs[index].numbers() for index in indices]
        common = [name for name in found[0] if all(name in numbers for numbers in found)]
        values = {name: [numbers[name] for numbers in found] for name in common}
        numbers = {name: (statistics.fmean(row), statistics.stdev(row)) for name, row in values.items()}
        groups.append(Group([runs[index].name for index in indices], numbers))
    return groups


def _note_signatures(result: Comparison) -> None:
    """Note which scores were computed in different ways."""
    by_column: dict[str, dict[str, list[str]]] = {}
    for run in result.runs:
        for name, record in run.scores.items():
            for key in scores_in(record):
                if signature := record.get(f"{key}_signature"):
                    signature = signature.replace(NORMALIZED, "")
                    by_column.setdefault(column(name, key), {}).setdefault(signature, []).append(run.name)
    for name, signatures in by_column.items():
        if len(signatures) > 1:
            ways = "; ".join(f"{', '.join(runs)}: {signature}" for signature, runs in signatures.items())
            result.notes.append(f"{name} was computed in different ways and cannot be compared: {ways}")


# -- significance ------------------------------------------------------------------------------------------------------


def _test_significance(result: Comparison, records: dict[str, RunRecords]) -> None:
    """Add the significance of the difference between each other run and the first, or a note why there is none."""

    @cache
    def pairs(name: str, test_set: str) -> tuple[list[str], list[str]]:
        recipe = records[name].recipe
        try:
            found = load_split(recipe.data, recipe.seed, test_set)
            return sources_of(found), texts(found)[1]
        except (ValueError, OSError) as error:
            raise UserError(f"the data of {name} cannot be read: {error}") from None

    first = result.runs[0]
    data = records[first.name].recipe.data
    for run in result.runs[1:]:
        if unfinished := [one.name for one in (first, run) if not one.finished]:
            why = " and ".join(f"{name} is not finished" for name in unfinished)
            result.notes.append(f"no significance test of {run.name} against {first.name}: {why}")
            continue
        for test_set in dict.fromkeys((*first.scores, *run.scores)):
            try:
                streams = [_scored_translations(one, test_set) for one in (first, run)]
                if len(streams[0]) != len(streams[1]):
                    raise UserError(f"they have outputs for {len(streams[0]):,} and {len(streams[1]):,} sentences")
                sources, references = pairs(first.name, test_set)
                if (sources, references) != pairs(run.name, test_set):
                    raise UserError("the sentences in their recipes differ")
                scores = [one.scores[test_set].get("bleu") for one in (first, run)]
                if None in scores:
                    raise UserError("it needs the BLEU of both")
                grouped_by = None if data.languages else sources
                difference = bleu_significance(*streams, references, data.names[1], scores, grouped_by)
                result.significance.append(Significance(run.name, test_set, *difference))
            except UserError as error:
                result.notes.append(f"no significance test of {run.name} against {first.name} on {test_set}: {error}")


def _scored_translations(run: RunSummary, test_set: str) -> list[str]:
    """A run's translations of a test set. Raises UserError if there are none, or others than those that were scored."""
    if test_set not in run.scores:
        raise UserError(f"{run.name} has no scores on it")
    try:
        translations = read_translations(Path(run.folder), test_set)
    except UserError as error:
        raise UserError(f"{error}; to score the run again, use scratch train --resume") from None
    if len(translations) != run.scores[test_set].get("sentences", len(translations)):
        raise UserError(f"the outputs of {run.name} are not those that were scored; score it again with --resume")
    return translations
