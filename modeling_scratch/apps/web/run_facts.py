"""Facts about a model's run that exports show: example sentences, data, scores, license."""

from pathlib import Path

from ...hub.card import license_of
from ...metrics import describe_score, scores_in, title_of
from ...run.records import METRICS_FILE, RECIPE, RunRecords, scored_set

_EXAMPLES = 3
_LONGEST_EXAMPLE = 80  # characters


def records_of(name: str) -> RunRecords | None:
    """The records of a run, if the model is a run's folder; None otherwise."""
    folder = Path(name)
    is_run = all((folder / file).is_file() for file in (RECIPE, METRICS_FILE))
    return RunRecords(folder, going_on=True) if is_run else None


def examples_of(run: RunRecords | None) -> list[str]:
    """Short source sentences from a run's sample translations."""
    found = dict.fromkeys(" ".join(sample.get("source", "").split()) for sample in (run.samples if run else []))
    return [text for text in found if 0 < len(text) <= _LONGEST_EXAMPLE][:_EXAMPLES]


def facts_of(folder: Path, run: RunRecords | None, license: str | None = None) -> list[tuple[str, str]]:
    """
    A model's training data, scores and license, as pairs of a name and a value in plain text.

    Args:
        run: the records of its run; None: unknown, so that at most the license is returned.
        license: None: read it from the folder.
    """
    facts = []
    if run is not None:
        found = [run.provenance(), *run.mixed()]
        facts.append(("Trained on", ", ".join(dict.fromkeys(provenance.dataset_name for provenance in found))))
        for record in run.scored:
            scores = ", ".join(f"{title_of(key)} {describe_score(record, key)}" for key in scores_in(record))
            facts.append((f"Scores on {scored_set(record)}", scores))
    if (known := license_of(folder, run, license)) is not None:
        facts.append(("License", known))
    return facts
