"""Places a paragraph's markup in its translation, around the words that translate those it enclosed."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence

from .marked_text import Atom, Element, Markup, Paragraph
from .paragraphs import Translated, guessed_links

# Escapes text; the second argument has the characters that were entities in the source.
Write = Callable[[str, dict[str, str]], str]
_KEPT_BY_WORDS = "%&#@*/\\"  # punctuation, according to Unicode, that attaches to a word


def placed(paragraph: Paragraph, translated: Translated, write: Write, raw: Callable[[Markup], str]) -> str:
    """
    A translated paragraph with its markup.

    Every element goes around one run of words, so that it occurs once and nothing crosses: the longest run of words
    linked to those it enclosed, perhaps with unlinked words in between. Without links, the words of both sides are
    linked in proportion.
    """
    return _Placement(paragraph, translated, write, raw).written()


def _spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" and character not in _KEPT_BY_WORDS


def _nearest(numbers: Sequence[int], wanted: float, first: int = 0) -> int | None:
    """The index, from `first` on, of the number nearest to `wanted` in a sorted list; None if there is none."""
    place = bisect_left(numbers, wanted, first)
    near = [each for each in (place - 1, place) if first <= each < len(numbers)]
    return min(near, key=lambda each: abs(numbers[each] - wanted), default=None)


class _Placement:
    def __init__(self, paragraph: Paragraph, translated: Translated, write: Write, raw: Callable[[Markup], str]):
        self.paragraph, self.write, self.raw = paragraph, write, raw
        self.source, self.target = paragraph.text, translated.text.strip()
        self.source_words, self.target_words = _spans(self.source), _spans(self.target)
        self.owned: dict[int, set[int]] = defaultdict(set)  # source word: its target words
        for source, target in translated.links or guessed_links(self.source, self.target):
            self.owned[source].add(target)
        self.linked = sorted(self.owned)
        self.starts = dict(reversed(translated.starts))  # the first of several in one word
        translating = set().union(*self.owned.values())
        self.linked_before = [0]  # for each target word, how many before it are linked
        for word in range(len(self.target_words)):
            self.linked_before.append(self.linked_before[-1] + (word in translating))
        self.ranges: dict[int, tuple[int, int]] = {}  # of target characters, by id(element)
        self.folds = self._placed_folds()

    def written(self) -> str:
        """The translation with its markup."""
        source_words, target_words = (0, len(self.source_words)), (0, len(self.target_words))
        self._place(self.paragraph.nodes, target_words, (0, len(self.target)), source_words)
        whole = (0, len(self.source))
        text = self._render(self.paragraph.nodes, whole, 0, len(self.target), [])
        return text + self._folds_at(len(self.target), [])

    # Elements, by words

    def _words_under(self, element: Element) -> tuple[int, int]:
        """The source words that an element covers, at least in part."""
        first = bisect_right(self.source_words, element.start, key=lambda span: span[1])
        return first, bisect_left(self.source_words, element.end, key=lambda span: span[0])

    def _place(
        self,
        nodes: Sequence[Atom | Element],
        words: tuple[int, int],
        bounds: tuple[int, int],
        around: tuple[int, int],
    ) -> None:
        """
        Give each element its words.

        Args:
            words: the target words available.
            bounds: the target characters available.
            around: the source words of the enclosing element.
        """
        elements = [node for node in nodes if isinstance(node, Element)]
        under = [self._words_under(element) for element in elements]
        free = list(range(*words)) if elements else []  # sorted
        chosen: list[tuple[int, int] | None] = []
        for place, sources in enumerate(under):
            # A word that two elements cover goes to the first.
            first = max(sources[0], under[place - 1][1]) if place else sources[0]
            is_all = sources == around and len(elements) == 1
            run = words if is_all else self._longest_run(range(first, sources[1]), free)
            chosen.append(run)
            if run:
                del free[bisect_left(free, run[0]) : bisect_left(free, run[1])]
        done = bounds[0]
        for place, element in enumerate(elements):
            run, (low, high) = chosen[place], bounds
            if run is None and place and under[place][1] <= under[place - 1][1]:
                run, low = chosen[place - 1], done  # within the last word of the previous element
            elif run is None:
                run = self._nearest_free(under[place][0], free, words[0])
            chosen[place] = run
            begin, done = self._characters(element, *run, low, high)
            self.ranges[id(element)] = begin, done
            self._place(element.nodes, run, (begin, done), under[place])

    def _longest_run(self, sources: range, free: list[int]) -> tuple[int, int] | None:
        """
        The run of free target words that has the most translations of the source words. Other words in it must be
        unlinked.
        """
        owned = sorted({word for source in sources for word in self.owned.get(source, ())})
        best, most, count, start, last = None, 0, 0, 0, -1
        for word in owned:
            place = bisect_left(free, word)
            if place == len(free) or free[place] != word:
                continue
            is_near = last >= 0 and self.linked_before[word] == self.linked_before[last + 1]
            if is_near and place - bisect_left(free, last) == word - last:
                count += 1
            else:
                start, count = word, 1
            last = word
            if count > most:
                best, most = (start, word + 1), count
        return best

    def _nearest_free(self, source_word: int, free: list[int], low: int) -> tuple[int, int]:
        """The free target word nearest to a source word's translation; no words if none is free."""
        place = _nearest(free, self._target_of(source_word))
        if place is None:
            return low, low
        word = free.pop(place)
        return word, word + 1

    def _target_of(self, source_word: int, is_last: bool = False) -> int:
        """The first or last target word linked to a source word, or to the nearest one with a link."""
        place = bisect_left(self.linked, source_word)
        near = self.linked[max(place - 1, 0) : place + 1]
        if not near:
            return 0
        least = min(abs(each - source_word) for each in near)
        words = set().union(*(self.owned[each] for each in near if abs(each - source_word) == least))
        return max(words) if is_last else min(words)

    def _characters(self, element: Element, start: int, end: int, least: int, greatest: int) -> tuple[int, int]:
        """
        The target characters of words, with punctuation at their edges only where the source has it too.

        Args:
            least, greatest: the bounds of the characters.
        """
        if start >= end:
            low = high = self.target_words[start][0] if start < len(self.target_words) else len(self.target)
        else:
            low, high = self.target_words[start][0], self.target_words[end - 1][1]
        low, high = max(low, least), min(high, greatest)
        if low >= high:
            place = min(max(low, least), greatest)
            return place, place
        text = self.source[element.start : element.end]
        first, last = self._words_under(element)
        before = self.source[self.source_words[first][0] : element.start]
        after = self.source[element.end : self.source_words[last - 1][1]]
        if before or after:  # part of a word stays part of a word
            same = self.target_words[start][0] + len(before)
            is_there = same >= low and self.target.startswith(text, same, high)
            if (found := same if is_there else self.target.find(text, low, high)) >= 0:
                return found, found + len(text)
            # and so do marks, as the colon after "**Why?**:"
            low += len(before) * (all(map(_is_mark, before)) and self.target.startswith(before, low, high))
            high -= len(after) * (all(map(_is_mark, after)) and self.target.endswith(after, low, high))
        inner_low, inner_high = self._without_marks(low, high)
        if inner_low < inner_high:
            low = low if _is_mark(text[0]) else inner_low
            high = high if _is_mark(text[-1]) else inner_high
        return low, high

    def _without_marks(self, low: int, high: int) -> tuple[int, int]:
        """A range of target characters without punctuation and white space at its edges."""

        def is_edge(place: int) -> bool:
            return _is_mark(self.target[place]) or self.target[place].isspace()

        while low < high and is_edge(low):
            low += 1
        while low < high and is_edge(high - 1):
            high -= 1
        return low, high

    # Atoms

    def _spot(self, atom: Atom, source: tuple[int, int], low: int, high: int) -> tuple[int, bool]:
        """
        The target character before which an atom goes, and whether it attaches to what follows.

        Args:
            source: the range of source characters that the atom is within.
            low, high: the corresponding range of target characters.
        """
        if atom.at <= source[0] or not self.target_words:
            return low, True
        if atom.at >= source[1]:
            return high, False
        spot, is_before = self._spot_by_words(atom)
        return min(max(spot, low), high), is_before

    def _spot_by_words(self, atom: Atom) -> tuple[int, bool]:
        """The same, from the word before the atom."""
        number = bisect_left(self.source_words, atom.at, key=lambda span: span[0]) - 1
        start, end = self.source_words[number]
        rest, begun = self.source[atom.at : end], self.source[start : atom.at]
        if not rest and number + 1 in self.starts:  # between two sentences
            start = max(self.starts[number + 1], 0)
            if atom.space_before and start < len(self.target_words):
                return self.target_words[start][0], True
            return (self.target_words[start - 1][1], False) if start else (0, True)
        if not rest and atom.space_before and not atom.space_after:
            return self.target_words[self._target_of(number + 1)][0], True
        if begun and rest and all(map(_is_mark, begun)):
            low, high = self.target_words[self._target_of(number)]
            inner = self._without_marks(low, high)[0]
            return (low + len(begun) if self.target.startswith(begun, low) else inner), True
        low, high = self.target_words[self._target_of(number, is_last=True)]
        if not rest or self.target.endswith(rest, low, high):
            return high - len(rest), bool(rest) and atom.space_after and not atom.space_before  # as after a bracket
        inner = self._without_marks(low, high)[1]
        return (inner if inner > low else high), False

    # Writing

    def _render(
        self, nodes: Sequence[Atom | Element], source: tuple[int, int], low: int, high: int, within: list[Element]
    ) -> str:
        """The target's characters from `low` to `high` with markup; `source` is the corresponding source range."""
        ranges = sorted(self.ranges[id(node)] for node in nodes if isinstance(node, Element))
        places: list[tuple[int, int, Atom | Element, bool]] = []
        for order, node in enumerate(nodes):
            if isinstance(node, Element):
                places.append((self.ranges[id(node)][0], order, node, False))
                continue
            last = places[-1] if places and isinstance(places[-1][2], Atom) else None
            if last and last[2].at == node.at and not node.space_before:  # directly after another
                places.append((last[0], order, node, last[3]))
                continue
            spot, is_before = self._spot(node, source, low, high)
            number = bisect_left(ranges, (spot,)) - 1  # the last element that starts before it
            spot = max(spot, ranges[number][1]) if number >= 0 else spot
            places.append((spot, order, node, is_before))
        parts, done = [], low
        for spot, _, node, is_before in sorted(places, key=lambda place: place[:2]):
            spot = max(spot, done)  # an element without words may lie within another
            parts.append(self._text(done, spot, within))
            done = spot
            if isinstance(node, Element):
                done = max(spot, self.ranges[id(node)][1])
                parts.append(self._element(node, spot, done, within))
            else:
                raw = "".join(map(self.raw, node.markup))
                written = "".join(parts[-2:])  # what another atom or the text ends with
                before = node.space_before and (not is_before or (bool(written) and not written[-1].isspace()))
                before |= written[-1:].isalnum() and raw[:1].isalnum()  # an address stays what it is
                after = is_before and node.space_after
                after |= raw[-1:].isalnum() and self.target[spot : min(spot + 1, high)].isalnum()
                parts.append(" " * before + raw + " " * after)
        parts.append(self._text(done, high, within))
        return "".join(parts)

    def _element(self, element: Element, low: int, high: int, within: list[Element]) -> str:
        inner = self._render(element.nodes, (element.start, element.end), low, high, [*within, element])
        if not inner and element.open.is_optional:
            return ""
        opening, closing = self.raw(element.open), self.raw(element.close)
        beside = self.target[low - 1 : low] + self.target[high : high + 1]
        if set(opening) == {"_"} and any(map(str.isalnum, beside)):  # which is no emphasis in Markdown
            opening = closing = "" if any("*" in self.raw(each.open) for each in within) else "*" * len(opening)
        return opening + inner + closing

    def _text(self, low: int, high: int, within: list[Element]) -> str:
        """The target's characters, escaped, with folds in place of spaces."""
        parts, done = [], low
        for place in range(low, high):
            if place in self.folds:
                parts += [self._escaped(done, place), self._folds_at(place, within)]
                done = place + 1
        return "".join(parts) + self._escaped(done, high)

    def _escaped(self, low: int, high: int) -> str:
        return self.write(self.target[low:high], self.paragraph.written)

    # Folds

    def _placed_folds(self) -> dict[int, list[Markup]]:
        """The folds, by the target space that they replace, in proportion to the source."""
        pairs = zip(self.target_words, self.target_words[1:], strict=False)
        every = [end for (_, end), (start, _) in pairs if start == end + 1]
        before_letters = [gap for gap in every if self.target[gap + 1].isalpha()]
        folds: dict[int, list[Markup]] = {}
        gap = -1
        for at, markup in self.paragraph.folds:
            possible = before_letters if markup.is_before_letter else every
            wanted = at * len(self.target) / len(self.source)
            place = _nearest(possible, wanted, bisect_right(possible, gap))
            if place is None and not markup.stays:
                continue  # a line break less: at the end it would make an empty line
            gap = len(self.target) if place is None else possible[place]
            folds.setdefault(gap, []).append(markup)
        return folds

    def _folds_at(self, place: int, within: list[Element]) -> str:
        parts = []
        for fold in self.folds.get(place, []):
            elements = within if fold.ends_elements else []
            parts += [self.raw(element.close) for element in reversed(elements)]
            parts.append(self.raw(fold))
            parts += [self.raw(element.open) for element in elements]
        return "".join(parts)
