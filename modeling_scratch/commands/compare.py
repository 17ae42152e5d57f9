"""`scratch compare`: tabulate runs' scores, cost and recipes, and test whether the differences are significant."""

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..metrics import METRICS, RESAMPLES, describe_score, scores_in
from .cli import Debug, log_to_terminal, one_line_errors, report

if TYPE_CHECKING:
    from ..apps.experiments.compare import Comparison, RunSummary


def main(
    runs: Annotated[list[Path], typer.Argument(help="the folders of two runs or more")],
    out: Annotated[Path | None, typer.Option(help="draw their validation curves to this PNG file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    debug: Debug = False,
) -> None:
    """
    Compare runs: scores with 95 % intervals, updates, minutes, tokens and parameters; the means of runs that differ
    only in their seeds; the differences of the recipes; and the significance of each run's BLEU against the first's.
    """
    log_to_terminal(logging.WARNING)
    with one_line_errors(debug):
        from ..apps.experiments.compare import compare, read_runs

        named_runs = read_runs(runs)
        if out is not None:
            from ..run.curves import comparison_figure, save

            save(comparison_figure({name: run.records for name, run in named_runs.items()}), out)
        comparison = compare(named_runs)
        facts = asdict(comparison)
        # JSON in ASCII: standard output may have any encoding.
        text = json.dumps(facts, indent=2) if as_json else "\n\n".join(comparison_text(comparison))
        report(text, None if out is None else f"{out} is written")


def comparison_text(comparison: "Comparison") -> list[str]:
    """The comparison as paragraphs and Markdown tables."""
    parts = [_numbers(comparison), _explanation(comparison)]
    names = [run.name for run in comparison.runs]
    if comparison.differences:
        rows = [[key, *map(_value, values)] for key, values in comparison.differences.items()]
        parts += [f"The recipes differ in\n\n{aligned_table(['key', *names], rows)}"]
    else:
        parts += ["The recipes are the same."]
    if comparison.significance:
        rows = [
            [test.run, test.test_set, f"{test.difference:+.2f}", f"{test.p_value:.3f}"]
            for test in comparison.significance
        ]
        signatures = ", ".join(dict.fromkeys(test.signature for test in comparison.significance))
        parts += [
            f"Against {names[0]}, by sacreBLEU's paired bootstrap ({signatures})\n\n"
            + aligned_table(["run", "set", "BLEU difference", "p"], rows),
            "p: how often the choice of sentences alone would make such a difference by chance. It does not include "
            "the variation between seeds; to see that, compare groups of seeds.",
        ]
    return [*filter(None, parts), *(["\n".join(comparison.notes)] if comparison.notes else [])]


def _numbers(comparison: "Comparison") -> str:
    """The table of runs, and of means over seeds."""
    columns = [name for run in comparison.runs for name in run.numbers()]
    columns = sorted(dict.fromkeys(columns), key=lambda name: name not in _COUNTS)
    rows = []
    for run in comparison.runs:
        title, cells = run.name if run.finished else f"{run.name} (not finished)", _cells(run)
        rows.append([title, *(cells.get(name, "") for name in columns)])
    for group in comparison.groups:
        cells = [_mean(name, *group.numbers[name]) if name in group.numbers else "" for name in columns]
        rows.append([f"mean of {', '.join(group.runs)}", *cells])
    return aligned_table(["run", *columns], rows)


# Formats of the columns that are not scores.
_COUNTS = {"updates": ",.0f", "minutes": ",.1f", "target tokens": ",.0f", "parameters": ",.0f"}


def _cells(run: "RunSummary") -> dict[str, str]:
    """The run's formatted numbers, by column title."""
    from ..apps.experiments.compare import column

    counts = {name: format(number, _COUNTS[name]) for name, number in run.numbers().items() if name in _COUNTS}
    scores = {
        column(test_set, key): describe_score(record, key)
        for test_set, record in run.scores.items()
        for key in scores_in(record)
    }
    return counts | scores | {name: format(score, ".2f") for name, score in run.noise_scores().items()}


def _mean(name: str, mean: float, deviation: float) -> str:
    how = _COUNTS.get(name, ".2f")
    exact = name in _COUNTS and deviation == 0
    return format(mean, how) + ("" if exact else f" (sd {format(deviation, how)})")


def _explanation(comparison: "Comparison") -> str:
    scores = [record for run in comparison.runs for record in run.scores.values()]
    lines = []
    if any(f"{key}_interval" in record for record in scores for key in METRICS):
        lines.append(f"±: half the 95 % interval over {RESAMPLES:,} bootstrap resamples of the sentences.")
    if comparison.groups:
        lines.append("sd: standard deviation over runs that differ only in their seeds.")
    if not all(run.finished for run in comparison.runs):
        lines.append("not finished: the best evaluation so far, with the beams of validation.")
    return " ".join(lines)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def aligned_table(header: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table that lines up in a terminal too: the first column left-aligned, the others right-aligned."""
    from tabulate import tabulate

    header, *rows = ([cell.replace("|", "\\|") for cell in row] for row in [header, *rows])
    aligned = ["left", *["right"] * (len(header) - 1)]
    return tabulate(rows, header, tablefmt="pipe", disable_numparse=True, colalign=aligned)
