"""Write and read metrics.jsonl, the records of a run."""

import json
import logging
from pathlib import Path
from types import UnionType
from typing import Any

from .. import metrics
from ..errors import UserError
from ..files import write_whole

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
_NUMBERS = {"step", "epoch", "loss", "learning_rate", "seconds", "target_tokens", "sentences", "train_pairs"}
_NUMBERS |= {"cross_entropy", "processes"}
_TEXTS = {"split", "name", "device", "device_name", "mixed_precision"}


def append_record(run: Path, record: dict[str, Any]) -> None:
    """Append a record as one line."""
    with (run / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_metrics(run: Path, skip_damaged: bool = False) -> list[dict[str, Any]]:
    """
    The records of a run. A last line without a line feed was cut off by an interrupt, and is ignored.

    Args:
        skip_damaged: skip damaged lines with a warning, since they must not end a run; a missing file has no records.

    Raises:
        UserError: there are no records, or a line is not one that training writes.
    """
    path = run / METRICS
    if skip_damaged and not path.is_file():
        return []
    if not path.is_file():
        raise UserError(f"{run}: not a run's folder: it has no {METRICS}")
    try:
        text = path.read_text(encoding="utf-8", errors="replace" if skip_damaged else "strict")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 ({error.reason})") from None
    records = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            records.append(_parse(line))
        except ValueError as error:
            if not skip_damaged:
                raise UserError(f"{path}, line {number}: {error}") from None
            logger.warning(f"{path}, line {number} is damaged and left out")
    if not records and not skip_damaged:
        raise UserError(f"{path}: no records yet")
    return records


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("not JSON") from None
    is_one = isinstance(record, dict) and {"split", "step"} <= record.keys()
    if not is_one or not all(isinstance(value, _type(name)) for name, value in record.items()):
        raise ValueError("not a record that training writes")
    return record


def _type(name: str) -> type | UnionType:
    """The type of the value with this name in a record."""
    if name in _TEXTS or name.endswith("_signature"):
        return str
    return int | float if name in _NUMBERS or name.removesuffix("_interval") in metrics.METRICS else object


def scored_set(record: dict[str, Any]) -> str:
    """The name of the split or further test set that a record's scores are for."""
    return record.get("name") or record["split"]


def finally_scored(run: Path) -> set[str]:
    """The names of the sets that a run has scored with its final weights; none if it has no records yet."""
    return {scored_set(record) for record in read_metrics(run, skip_damaged=True) if record.get("final")}


def forget_after(run: Path, step: int, unsettled: bool = False) -> None:
    """Drop what a resumed run writes again: final records, those after `step` and, if `unsettled`, its evaluation."""
    kept = [
        record
        for record in read_metrics(run, skip_damaged=True)
        if record["step"] <= step
        and "final" not in record
        and not (unsettled and record["step"] == step and record["split"] != "train")
    ]
    write_whole(run / METRICS, "".join(json.dumps(record) + "\n" for record in kept))
