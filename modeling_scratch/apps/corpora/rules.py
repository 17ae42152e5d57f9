"""The rules of cleaning: which checks drop a pair, from which score on, as a YAML file that people can change."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...recipe import CONFIGURATION_FOLDER
from ...recipe.reading import read_yaml
from .checks import CHECKS

CLEANING_FILE = CONFIGURATION_FOLDER / "cleaning.yaml"


@dataclass(frozen=True)
class Rules:
    """
    The score of each check from which on a pair has its fault.

    Args:
        drop: of checks that drop pairs.
        report: of checks whose pairs are only counted.
    """

    drop: dict[str, float]
    report: dict[str, float]

    @property
    def thresholds(self) -> dict[str, float]:
        """Of all checks, in the order of `CHECKS`."""
        both = self.drop | self.report
        return {name: both[name] for name in CHECKS}


def read_rules(path: Path | None = None) -> Rules:
    """
    The rules in a file, with those that come with this package for the checks that it does not name.

    Raises:
        UserError: the file cannot be read, or names what is no check, or gives it no number.
    """
    shipped = _read(CLEANING_FILE)
    if path is None:
        return Rules(**shipped)
    own = _read(path)
    if both := own["drop"].keys() & own["report"].keys():
        raise UserError(f"{path}: {min(both)} is under both drop and report; delete one of them")
    named = own["drop"].keys() | own["report"].keys()
    return Rules(
        **{
            part: {name: value for name, value in shipped[part].items() if name not in named} | own[part]
            for part in ("drop", "report")
        }
    )


def _read(path: Path) -> dict[str, dict[str, float]]:
    content = read_yaml(path)
    parts = {part: content.pop(part, None) or {} for part in ("drop", "report")}
    if content:
        raise UserError(f"{path}: {next(iter(content))!r} is neither drop nor report")
    for part, rules in parts.items():
        if not isinstance(rules, dict):
            raise UserError(f"{path}: {part} is not a list of checks, each with a number")
        for name, value in rules.items():
            _check(path, f"{part}.{name}", name, value)
    return parts


def _check(path: Path, key: str, name: Any, value: Any) -> None:
    if name not in CHECKS:
        raise UserError(f"{path}: {key}: no such check; there are {', '.join(CHECKS)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"{path}: {key} is {value!r}, not a number above 0; to keep such pairs, move it to report")
