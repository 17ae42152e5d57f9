"""Two files of subtitles, aligned by time."""

import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple

from ...errors import UserError
from ..documents.srt import srt_cues
from ..documents.vtt import vtt_cues
from .corpus_files import CorpusFile
from .units import NO_SOURCE, NO_TARGET, Request, Unit

_TAG = re.compile(r"<[^<>\n]*>|\{\\[^{}]*\}")
_SENTENCE_END = re.compile(r"""[.!?…。！？؟।♪:\])]["'”’»)\]]*$""")  # noqa: RUF001
_LONGEST_PAUSE = 3000  # milliseconds within a sentence
_MOST_CUES = 6  # of a side, in a pair
_TOO_MANY = f"with more than {_MOST_CUES} cues at once"
# When two files are not of one version of a film: all times in milliseconds.
_ENOUGH_CUES = 20
_SHIFTS = range(-60_000, 60_001, 100)
_NEAR = 250  # cues that translate each other begin within this time
_MOST_SHIFT = 500  # which does no harm
_FEW = 0.25  # the share of cues that begin with another one by chance, if one begins every two seconds


class _Cue(NamedTuple):
    begin: int
    end: int
    text: str


_Group = tuple[list[_Cue], list[_Cue]]  # cues of source and target that belong together


def read_subtitles(_: str, source: CorpusFile, target: CorpusFile, request: Request) -> Iterator[Unit]:
    """
    The cues that are shown at the same time, joined where a sentence goes on in both files.

    Raises:
        UserError: the files fit each other better if one is shifted in time, or at no shift.
    """
    sources, targets = _cues(source), _cues(target)
    _check_times(sources, targets, f"{source.name} and {target.name}")
    last: _Group | None = None
    for group in _groups(sources, targets):
        if last is not None and _goes_on(last, group):
            last = last[0] + group[0], last[1] + group[1]
            continue
        if last is not None:
            yield _unit(last)
        last = group
    if last is not None:
        yield _unit(last)


def _cues(file: CorpusFile) -> list[_Cue]:
    text, is_vtt = file.text(), file.plain_name.lower().endswith(".vtt")
    try:
        cues = list(vtt_cues(text) if is_vtt else srt_cues(text))
    except UserError as error:
        raise UserError(f"{file.name}: {error}") from None
    shown = (_Cue(cue.begin, cue.end, _TAG.sub("", text[cue.first : cue.last])) for cue in cues)
    return sorted(cue._replace(text=unescape(cue.text) if is_vtt else cue.text) for cue in shown if cue.text.strip())


def _groups(sources: list[_Cue], targets: list[_Cue]) -> list[_Group]:
    """Cues with those that they overlap by half of the shorter one, in order; some have none."""
    groups: list[tuple[set[int], set[int]]] = []
    start, taken = 0, set[int]()
    for index, cue in enumerate(sources):
        while start < len(targets) and targets[start].end <= cue.begin:
            start += 1
        found = set()
        for other in range(start, len(targets)):
            if targets[other].begin >= cue.end:
                break
            overlap = min(cue.end, targets[other].end) - max(cue.begin, targets[other].begin)
            if 2 * overlap >= min(cue.end - cue.begin, targets[other].end - targets[other].begin) > 0:
                found.add(other)
        taken |= found
        if groups and found & groups[-1][1]:
            groups[-1][0].add(index)
            groups[-1][1].update(found)
        else:
            groups.append(({index}, found))
    groups += ((set(), {index}) for index in range(len(targets)) if index not in taken)
    made = [([sources[i] for i in sorted(ours)], [targets[i] for i in sorted(theirs)]) for ours, theirs in groups]
    return sorted(made, key=lambda group: (group[0] + group[1])[0].begin)


def _goes_on(last: _Group, group: _Group) -> bool:
    """Whether a sentence goes on, in both files, from one group to the next."""
    if not all((*last, *group)) or any(len(last[side]) + len(group[side]) > _MOST_CUES for side in (0, 1)):
        return False
    pause = min(cues[0].begin for cues in group) - max(cues[-1].end for cues in last)
    return pause <= _LONGEST_PAUSE and not any(_SENTENCE_END.search(cues[-1].text.strip()) for cues in last)


def _unit(group: _Group) -> Unit:
    seconds, milliseconds = divmod((group[0] + group[1])[0].begin, 1000)
    place = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{milliseconds:03}"
    if not all(group):
        return Unit(place, skipped=NO_TARGET if group[0] else NO_SOURCE)
    texts = (" ".join(cue.text for cue in cues) for cues in group)
    return Unit(place, *texts, _TOO_MANY if max(map(len, group)) > _MOST_CUES else "")


def _check_times(sources: list[_Cue], targets: list[_Cue], names: str) -> None:
    """Raise UserError if the cues of two files do not begin at the same times."""
    import numpy

    if min(len(sources), len(targets)) < _ENOUGH_CUES:
        return
    ours, theirs = (numpy.array([cue.begin for cue in cues]) for cues in (sources, targets))

    def share(shift: int) -> float:
        """The share of cues that begin near one of the other file, which is shifted."""
        after = numpy.searchsorted(theirs, ours - shift)
        gaps = [numpy.abs(theirs[(after - k).clip(0, len(theirs) - 1)] - (ours - shift)) for k in (0, 1)]
        return float((numpy.minimum(*gaps) <= _NEAR).mean())

    now = max(map(share, range(-_MOST_SHIFT, _MOST_SHIFT + 1, 100)))
    shares = {shift: share(shift) for shift in _SHIFTS}
    most = max(shares.values())
    if most > 1.5 * now and most > 2 * _FEW:
        best = [shift for shift in _SHIFTS if shares[shift] == most]
        late = -best[len(best) // 2] / 1000
        raise UserError(
            f"{names}: the second is {abs(late):.1f} seconds {'late' if late > 0 else 'early'}: {now:.0%} of the cues "
            f"begin together, and {most:.0%} would; shift it in a subtitle editor"
        )
    if now < _FEW:
        raise UserError(
            f"{names}: only {now:.0%} of the cues begin at the same time; are they of the same version of one film?"
        )
