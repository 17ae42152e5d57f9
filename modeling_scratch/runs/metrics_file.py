"""Write and read metrics.jsonl, the records of a run."""

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, create_model

from ..files import write_whole
from ..metrics import METRICS

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"

_NUMBERS = ("epoch", "loss", "cross_entropy", "learning_rate", "seconds", "target_tokens", "parameters", "sentences")
_NUMBERS += (*METRICS, *(f"{key}_interval" for key in METRICS))
_TEXTS = ("name", "device", "device_name", "mixed_precision", *(f"{key}_signature" for key in METRICS))
_Record = create_model(  # the types that readers rely on; a record may hold more
    "_Record",
    __config__=ConfigDict(strict=True),
    split=str,
    step=int,
    samples=(list[dict[str, str]], []),
    **dict.fromkeys(_NUMBERS, (float | None, None)),
    **dict.fromkeys(_TEXTS, (str | None, None)),
)


def append_record(run: Path, record: dict[str, Any]) -> None:
    """Append a record as one line."""
    with (run / METRICS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """
    The records of a run; none if it has not written any. A damaged line is left out, with a warning. A last line
    without a line feed was cut off by an interrupt, and is ignored.
    """
    path = run / METRICS_FILE
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            _Record.model_validate(record)
            records.append(record)
        except (ValueError, RecursionError):
            logger.warning(f"{path}, line {number} is damaged and left out")
    return records


def scored_set(record: dict[str, Any]) -> str:
    """The name of the split or further test set that a record's scores are for."""
    return record.get("name") or record["split"]


def finally_scored(run: Path) -> dict[str, dict[str, Any]]:
    """The last record of each set that a run has scored with its final weights, by its name; none if there are none."""
    return {scored_set(record): record for record in read_metrics(run) if record.get("final")}


def forget_after(run: Path, step: int, unsettled: bool = False) -> None:
    """Drop what a resumed run writes again: final records, those after `step` and, if `unsettled`, its evaluation."""
    kept = [
        record
        for record in read_metrics(run)
        if record["step"] <= step
        and "final" not in record
        and not (unsettled and record["step"] == step and record["split"] != "train")
    ]
    write_whole(run / METRICS_FILE, "".join(json.dumps(record) + "\n" for record in kept))
