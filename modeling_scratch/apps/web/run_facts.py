"""What an export reports about the run that trained its model: examples to try, data, scores, license."""

from pathlib import Path

from ...hub.card import license_of
from ...metrics import describe_score, scores_in, title_of
from ...training.folder import METRICS_FILE, RECIPE, scored_set
from ...training.records import RunRecords

_EXAMPLES = 3
_LONGEST_EXAMPLE = 80  # characters


def records_of(name: str) -> RunRecords | None:
    """The records of the run whose folder this is; None for any other model."""
    folder = Path(name)
    is_run = all((folder / file).is_file() for file in (RECIPE, METRICS_FILE))
    return RunRecords(folder, going_on=True) if is_run else None


def examples_of(run: RunRecords | None) -> list[str]:
    """Short source sentences from a run's sample translations."""
    found = dict.fromkeys(" ".join(sample.get("source", "").split()) for sample in (run.samples if run else []))
    return [text for text in found if 0 < len(text) <= _LONGEST_EXAMPLE][:_EXAMPLES]


def facts_of(folder: Path, run: RunRecords | None, license: str | None = None) -> list[tuple[str, str]]:
    """
    The training data, scores and license of a model: names and values, in plain text.

    Args:
        run: its records; None: the folder is no run's, so that only the license can be known.
        license: None: as the folder says.
    """
    facts = []
    if run is not None:
        found = [run.provenance(), *run.mixed()]
        facts.append(("Trained on", ", ".join(dict.fromkeys(each.dataset_name for each in found))))
        for record in run.scored:
            scores = ", ".join(f"{title_of(key)} {describe_score(record, key)}" for key in scores_in(record))
            facts.append((f"Scores on {scored_set(record)}", scores))
    if (known := license_of(folder, run, license)) is not None:
        facts.append(("License", known))
    return facts
