"""Cleaning a corpus: pairs with a fault are left out of it, and kept in a file of their own with the reasons."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UserError, shortened
from ...files import check_new_output, new_output
from .checks import CHECKS, Finding, check_pairs
from .pair_files import PairFiles
from .rules import Rules

_OF_COPIES = ("duplicate", "near_duplicate")
_EXAMPLES = 2  # of each check
_LONGEST_SIDE = 70  # characters of an example


@dataclass
class Cleaned:
    """
    What cleaning a corpus did.

    Args:
        output, dropped_file: where the pairs are.
        pairs, kept: how many there were, and are.
        found: how many pairs have the fault of each check.
        examples: of each check, the pairs whose score is nearest to its threshold: there one sees whether it is right.
    """

    output: Path
    dropped_file: Path
    pairs: int = 0
    kept: int = 0
    found: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[float, int, str, str]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, finding: Finding, source: str, target: str) -> None:
        self.found[finding.check] += 1
        examples = self.examples[finding.check]
        examples.append((finding.score, finding.line, source, target))
        examples.sort(key=lambda example: example[:2])
        del examples[_EXAMPLES:]


def clean_corpus(files: PairFiles, output: Path, rules: Rules, test_sources: Iterable[str] = ()) -> Cleaned:
    """
    Write the pairs of files without a fault to a JSONL file, with all their columns, and those with one beside it, to
    `...-dropped.jsonl`, each with its line and the scores that were too high. The same files give the same results.

    Raises:
        UserError: an output exists, or cannot be written; or as the files raise it.
    """
    if output.suffix != ".jsonl":
        raise UserError(f"{output}: name a .jsonl file")
    done = Cleaned(output, output.with_name(f"{output.stem}-dropped.jsonl"))
    check_new_output(output)
    rows = files.rows()
    names = [name for name in CHECKS if name in rules.thresholds]
    dropped_lines: set[int] = set()  # for other reasons than that they are copies
    with (
        new_output(done.dropped_file) as dropped_path,
        new_output(output) as kept_path,
        dropped_path.open("w", encoding="utf-8") as dropped,
        kept_path.open("w", encoding="utf-8") as kept,
    ):
        for checked in check_pairs(files.pairs, files.data.languages, test_sources, names):
            found: list[list[Finding]] = [[] for _ in checked.pairs]
            for finding in checked.findings(rules.thresholds):
                found[finding.line - checked.first - 1].append(finding)
            for place, findings in enumerate(found):
                _, row = next(rows)
                if checked.earlier[place] in dropped_lines:  # the pair that this one repeats is not kept either
                    findings = [finding for finding in findings if finding.check not in _OF_COPIES]
                reasons = {finding.check: finding.score for finding in findings if finding.check in rules.drop}
                for finding in findings:
                    done.add(finding, *checked.pairs[place])
                done.pairs += 1
                if not reasons:
                    done.kept += 1
                    kept.write(_line(row))
                    continue
                if not reasons.keys() <= set(_OF_COPIES):
                    dropped_lines.add(checked.first + place)
                told = {name: round(score, 3) for name, score in reasons.items()}
                dropped.write(_line({**row, "dropped": {"line": checked.first + place + 1, "reasons": told}}))
        if not done.kept:
            raise UserError(f"all {done.pairs:,} pairs would be dropped: {_counts(done.found)}; change the rules")
    return done


def _line(row: dict) -> str:
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in found.most_common())


def describe_cleaning(done: Cleaned, rules: Rules) -> str:
    """The counts by check, with examples, as text for a terminal."""
    dropped = done.pairs - done.kept
    lines = [f"{done.pairs:,} pairs: kept {done.kept:,}, dropped {dropped:,} ({dropped / max(done.pairs, 1):.1%})"]
    for title, thresholds in (("dropped", rules.drop), ("only counted", rules.report)):
        names = [name for name in CHECKS if name in thresholds and done.found[name]]
        if not names:
            continue
        lines += ["", f"{title}; examples are those nearest to the limit, with their scores:"]
        for name in names:
            share = done.found[name] / done.pairs
            lines.append(f"{done.found[name]:9,} {share:6.1%}  {name} (from {thresholds[name]:g} on): {CHECKS[name]}")
            for score, line, source, target in done.examples[name]:
                sides = " → ".join(shortened(side, _LONGEST_SIDE) for side in (source, target))
                lines.append(f"{'':19}{score:.2f}, line {line:,}: {sides}")
    return "\n".join(lines)
