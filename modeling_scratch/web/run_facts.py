"""What a page says of the run that made its model: examples to try, data, scores, license."""

from pathlib import Path

from ..hub.card import check_license
from ..hub.run_records import RunRecords
from ..metrics import describe_score, scores_in, title_of
from ..runs.folder import RECIPE
from ..runs.metrics_file import METRICS, scored_set

_EXAMPLES = 3
_LONGEST_EXAMPLE = 80  # letters


def read_run(folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Examples and facts, as names and values in plain text; none if the folder is not a run's."""
    if not all((folder / file).is_file() for file in (RECIPE, METRICS)):
        return [], []
    run = RunRecords(folder)
    return _examples(run), _facts(run)


def _examples(run: RunRecords) -> list[str]:
    found = dict.fromkeys(" ".join(sample.get("source", "").split()) for sample in run.samples)
    return [text for text in found if 0 < len(text) <= _LONGEST_EXAMPLE][:_EXAMPLES]


def _facts(run: RunRecords) -> list[tuple[str, str]]:
    """What the page says of where the model is from and how good it is: names and values, in plain text."""
    found = [run.provenance(), *run.mixed()]
    facts = [("Trained on", ", ".join(dict.fromkeys(each.dataset_name for each in found)))]
    for record in run.scored:
        scores = ", ".join(f"{title_of(key)} {describe_score(record, key)}" for key in scores_in(record))
        facts.append((f"Scores on {scored_set(record)}", scores))
    facts.append(("License", check_license(run.recipe.hub.license)))
    return facts
