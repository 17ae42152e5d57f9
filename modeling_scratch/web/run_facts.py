"""What an export reports about the run that trained its model: examples to try, data, scores, license."""

from pathlib import Path

from ..hub.card import license_of
from ..hub.run_records import RunRecords
from ..metrics import describe_score, scores_in, title_of
from ..runs.folder import RECIPE
from ..runs.metrics_file import METRICS, scored_set

_EXAMPLES = 3
_LONGEST_EXAMPLE = 80  # characters


def records_of(name: str) -> RunRecords | None:
    """The records of the run whose folder this is; None for any other model."""
    return RunRecords(Path(name)) if all((Path(name) / file).is_file() for file in (RECIPE, METRICS)) else None


def examples_of(run: RunRecords | None) -> list[str]:
    """Short source sentences from a run's sample translations."""
    found = dict.fromkeys(" ".join(sample.get("source", "").split()) for sample in (run.samples if run else []))
    return [text for text in found if 0 < len(text) <= _LONGEST_EXAMPLE][:_EXAMPLES]


def facts_of(run: RunRecords | None, license: str | None = None) -> list[tuple[str, str]]:
    """
    The training data, scores and license of a run's model: names and values, in plain text.

    Args:
        license: None: as the folder says.
    """
    if run is None:
        return []
    found = [run.provenance(), *run.mixed()]
    facts = [("Trained on", ", ".join(dict.fromkeys(each.dataset_name for each in found)))]
    for record in run.scored:
        scores = ", ".join(f"{title_of(key)} {describe_score(record, key)}" for key in scores_in(record))
        facts.append((f"Scores on {scored_set(record)}", scores))
    if (known := license_of(run.folder, run, license)) is not None:
        facts.append(("License", known))
    return facts
