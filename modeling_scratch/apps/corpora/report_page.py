"""The report on a corpus as lines for a terminal, and as one HTML page without scripts, with its pictures."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...errors import UserError, shortened
from ...files import check_new_output, new_output
from ...languages import is_tag
from .corpus_report import MANY_TOKENS, MEANINGS, CorpusReport, percent, summary

_WIDTH = 80  # of a terminal
_BARS = 40  # of a picture
_FILES = 30  # of origins that are listed
_LONGEST_EXAMPLE = 400  # characters
_MARK = '<meta name="generator" content="scratch corpus report">'  # only pages with it are replaced


def describe(report: CorpusReport) -> list[str]:
    """The report as lines of at most 80 characters, except for names of files."""
    names = " to ".join(side.name for side in report.sides)
    lines = [f"{report.name}: {report.pairs:,} pairs, {names}", ""]
    rows = [["", *(side.name for side in report.sides)], *([row[0], *row[1]] for row in _figures(report))]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines += ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    lines += ["", f"{'pairs':>11}  {'share':>8}  what is wrong (*: scratch corpus clean drops them)"]
    for fault in report.faults:
        if fault.examples:
            share, mark, worst = percent(fault.count / report.pairs), "* "[not fault.drops], fault.examples[0]
            lines += [f"{fault.count:11,}  {share:>8} {mark}{fault.meaning}", f"{'':11}  pair {worst.line:,}:"]
            lines += [f"{'':13}{_quoted(text)}" for text in (worst.source, worst.target)]
    if nothing := [fault.check for fault in report.faults if not fault.count]:
        lines += textwrap.wrap(f"{0:11}  no pair: {', '.join(nothing)}", _WIDTH, subsequent_indent=" " * 13)
    if len(report.origins) > 1:
        lines += ["", f"{'pairs':>11}  {'dropped':>8}  from"]
        lines += [f"{count:11,}  {share:>8}  {name}" for name, count, share in _files(report)]
    for told in summary(report):
        lines += ["", *textwrap.wrap(told, _WIDTH, break_long_words=False, break_on_hyphens=False)]
    return lines


def write_page(path: Path, report: CorpusReport, command: str) -> None:
    """
    Write the report as HTML.

    Args:
        command: what to type next.

    Raises:
        UserError: there is another file, which is no report.
    """
    environment = Environment(
        loader=PackageLoader(__package__, ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"number": "{:,}".format, "percent": percent, "shortened": _shortened, "score": _score}
    page = environment.get_template("report.html.jinja").render(
        mark=Markup(_MARK),
        report=report,
        languages=[code if is_tag(code) else None for code in report.languages or ("", "")],
        summary=summary(report),
        command=command,
        figures=_figures(report),
        pictures=_pictures(report),
        most=max((fault.count for fault in report.faults), default=0) or 1,
        meanings=MEANINGS,
        files=_files(report),
    )
    with new_output(path, _check_is_report) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")


def check_page(path: Path) -> None:
    """Raise UserError, before minutes of work, if a page cannot be written there."""
    check_new_output(path, _check_is_report)


def _check_is_report(path: Path) -> None:
    if not path.is_file() or _MARK not in path.read_text(encoding="utf-8", errors="replace")[:1000]:
        raise UserError(f"{path} exists, and is no report; choose another name with --html")


def _figures(report: CorpusReport) -> list[tuple[str, list[str]]]:
    """What is told of both sides."""
    sides = report.sides
    rows = [
        ("characters", [f"{side.characters:,}" for side in sides]),
        ("characters of a text, median", [f"{side.quantile(0.5):,}" for side in sides]),
        ("99 % have at most", [f"{side.quantile(0.99):,}" for side in sides]),
        ("longest", [f"{side.longest:,}" for side in sides]),
        ("words of a text, mean", [f"{side.words / report.pairs:.1f}" if side.has_spaces else "-" for side in sides]),
    ]
    if tokens := [side.tokens for side in sides if side.tokens]:
        words = zip(sides, tokens, strict=True)
        rows += [
            ("tokens of a word, mean", [f"{found.a_word:.2f}" if side.has_spaces else "-" for side, found in words]),
            ("tokens of a text, median", [f"{found.a_text:.0f}" for found in tokens]),
            (f"texts above {MANY_TOKENS} tokens", [percent(found.too_long) for found in tokens]),
            ("unknown tokens", [percent(found.unknown) for found in tokens]),
        ]
    return rows


def _files(report: CorpusReport) -> list[tuple[str, int, str]]:
    """Where the pairs are from: name, pairs, and the share that would be dropped."""
    listed = list(report.origins.items())
    rows = [(name, count, dropped) for name, (count, dropped) in listed[:_FILES]]
    if rest := [counts for _, counts in listed[_FILES:]]:
        rows.append((f"{len(rest):,} others", sum(count for count, _ in rest), sum(dropped for _, dropped in rest)))
    return [(name, count, percent(dropped / count)) for name, count, dropped in rows]


def _quoted(text: str) -> str:
    """The beginning of a text for a terminal: what does not print is escaped."""
    return shortened(repr(text), _WIDTH - 16)


def _shortened(text: str) -> str:
    return shortened(text, _LONGEST_EXAMPLE)


def _score(score: float) -> str:
    return f"{score:,.0f}" if score == int(score) else f"{score:.2f}"


# -- pictures ----------------------------------------------------------------------------------------------------------


def _pictures(report: CorpusReport) -> list[dict[str, Any]]:
    return [_lengths(report), _ratios(report)]


def _lengths(report: CorpusReport) -> dict[str, Any]:
    """How long the texts of both sides are, up to the length that 99 % have."""
    longest = max(side.quantile(0.99) for side in report.sides) + 1
    width = next(width for digits in range(5) for step in (1, 2, 5) if (width := step * 10**digits) * _BARS >= longest)
    bars = -(-longest // width)
    counts = []
    for side in report.sides:
        inside = np.append(side.lengths, np.zeros(width * bars, dtype=np.int64))[: width * bars]
        counts.append(inside.reshape(bars, width).sum(axis=1))
    step = next(step for step in (1, 2, 5, 10, 20) if bars / step <= 8)
    told = " ".join(f"Half of the texts in {side.name} have at most {side.quantile(0.5):,}." for side in report.sides)
    return {
        "title": "Characters of a text",
        "told": told + " The longest 1 % are not drawn.",
        "names": [side.name for side in report.sides],
        "paths": _paths(counts),
        "ticks": [(100 * bar / bars, f"{bar * width:,}") for bar in range(0, bars, step)],
    }


def _ratios(report: CorpusReport) -> dict[str, Any]:
    total = max(int(report.ratios.sum()), 1)
    middle = len(report.ratios) // 6
    near = int(report.ratios[2 * middle : 4 * middle].sum())
    return {
        "title": "Length ratio, target to source",
        "told": f"{percent(near / total)} of the targets have between half and twice the characters of their source.",
        "names": [],
        "paths": _paths([report.ratios]),
        "ticks": [(100 / 6 * place, label) for place, label in enumerate(("⅛", "¼", "½", "1", "2", "4", "8"))],
    }


def _paths(series: Sequence[np.ndarray]) -> list[str]:
    """Steps of an SVG path for each series, in a box of 100 by 100."""
    highest = max(int(counts.max(initial=0)) for counts in series) or 1
    paths = []
    for counts in series:
        width = 100 / len(counts)
        steps = [f"V{100 - 100 * count / highest:.2f}H{width * (bar + 1):.2f}" for bar, count in enumerate(counts)]
        paths.append(f"M0,100{''.join(steps)}V100Z")
    return paths
