"""Where the markup of a paragraph goes in its translation: around the words that translate the words it was around."""

import re
import unicodedata
from collections.abc import Callable, Sequence

from ..paragraphs import Translated, guessed_links
from .marked_text import Atom, Element, Markup, Paragraph

# Writes text; the second argument has the entities that stood for characters in the source.
Write = Callable[[str, dict[str, str]], str]
_KEPT_BY_WORDS = "%&#@*/\\"  # punctuation, by Unicode, that belongs to a word next to it


def placed(paragraph: Paragraph, translated: Translated, write: Write, raw: Callable[[Markup], str]) -> str:
    """
    A translated paragraph with its markup.

    Every element goes around one run of words, so that it is there once and nothing crosses. Of the words that are
    linked to its words, that is the longest run, with words in between that are linked to none. Without links, the
    words of both sides are linked in proportion.
    """
    return _Placement(paragraph, translated, write, raw).written()


def _spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" and character not in _KEPT_BY_WORDS


class _Placement:
    def __init__(self, paragraph: Paragraph, translated: Translated, write: Write, raw: Callable[[Markup], str]):
        self.paragraph, self.write, self.raw = paragraph, write, raw
        self.source, self.target = paragraph.text, translated.text.strip()
        self.source_words, self.target_words = _spans(self.source), _spans(self.target)
        self.owners = self._owners(translated.links or guessed_links(self.source, self.target))
        self.ranges: dict[int, tuple[int, int]] = {}  # of target characters, by id(element)
        self.folds = self._placed_folds()

    def _owners(self, links: Sequence[tuple[int, int]]) -> list[int | None]:
        """For each target word, the source word that it translates."""
        owners: list[int | None] = [None] * len(self.target_words)
        for source, target in links:
            if owners[target] is None:
                owners[target] = source
        return owners

    def written(self) -> str:
        """The translation as it is written."""
        self._place(self.paragraph.nodes, 0, len(self.target_words), (0, len(self.source_words)))
        text = self._render(self.paragraph.nodes, 0, len(self.target), [])
        return text + self._folds_at(len(self.target), [])

    # Elements, by words

    def _words_under(self, element: Element) -> tuple[int, int]:
        """The source words that are, in part at least, under an element."""
        touched = [
            place for place, (start, end) in enumerate(self.source_words) if start < element.end and end > element.start
        ]
        return touched[0], touched[-1] + 1

    def _place(self, nodes: Sequence[Atom | Element], low: int, high: int, around: tuple[int, int]) -> None:
        """
        Give each element its words.

        Args:
            low, high: the target words that there are for them.
            around: the source words under the element that they are in.
        """
        elements = [node for node in nodes if isinstance(node, Element)]
        under = [self._words_under(element) for element in elements]
        chosen: list[tuple[int, int] | None] = []
        for place, words in enumerate(under):
            if words == around and len(elements) == 1:
                chosen.append((low, high))
                continue
            # A word under two elements is the first one's.
            first = max(words[0], under[place - 1][1]) if place else words[0]
            chosen.append(self._longest_run(first, words[1], low, high))
        free = set(range(low, high)) - {word for run in chosen if run for word in range(*run)}
        for place, element in enumerate(elements):
            start, end = chosen[place] or self._nearest_free(under[place][0], free, low)
            self.ranges[id(element)] = self._characters(element, start, end)
            self._place(element.nodes, start, end, under[place])

    def _longest_run(self, first: int, last: int, low: int, high: int) -> tuple[int, int] | None:
        """The run from `low` to `high` with the most words that belong to the source words given, if there are any."""
        best, most, start, count = None, 0, None, 0
        for place in range(low, high):
            owner = self.owners[place]
            if owner is not None and first <= owner < last:
                start, count = (place, 1) if start is None else (start, count + 1)
                if count > most:
                    best, most = (start, place + 1), count
            elif owner is not None:
                start, count = None, 0
        return best

    def _nearest_free(self, source_word: int, free: set[int], low: int) -> tuple[int, int]:
        """The free target word nearest to where a source word is translated; no words if none is free."""
        wanted = self._target_of(source_word)
        if not free:
            return low, low
        word = min(sorted(free), key=lambda each: abs(each - wanted))
        free.remove(word)
        return word, word + 1

    def _target_of(self, source_word: int, is_last: bool = False) -> int:
        """The first, or last, target word of a source word, or of the nearest that has one."""
        pairs = [(abs(owner - source_word), place) for place, owner in enumerate(self.owners) if owner is not None]
        if not pairs:
            return 0
        nearest = min(distance for distance, _ in pairs)
        places = [place for distance, place in pairs if distance == nearest]
        return places[-1] if is_last else places[0]

    def _characters(self, element: Element, start: int, end: int) -> tuple[int, int]:
        """The target characters for words; punctuation at their edges only where the source has it there too."""
        if start >= end:
            place = self.target_words[start][0] if start < len(self.target_words) else len(self.target)
            return place, place
        low, high = self.target_words[start][0], self.target_words[end - 1][1]
        text = self.source[element.start : element.end]
        around = self.source[max(element.start - 1, 0) : element.start] + self.source[element.end : element.end + 1]
        if around.strip() and (found := self.target.find(text, low, high)) >= 0:  # a part of a word, which stays
            return found, found + len(text)
        inner_low, inner_high = self._without_marks(low, high)
        if inner_low < inner_high:
            low = low if _is_mark(text[0]) else inner_low
            high = high if _is_mark(text[-1]) else inner_high
        return low, high

    def _without_marks(self, low: int, high: int) -> tuple[int, int]:
        while low < high and _is_mark(self.target[low]):
            low += 1
        while low < high and _is_mark(self.target[high - 1]):
            high -= 1
        return low, high

    # Atoms

    def _spot(self, atom: Atom) -> tuple[int, bool]:
        """The target character that an atom goes before, and whether it is at the beginning of what follows."""
        if atom.at == 0 or not self.target_words:
            return 0, True
        if atom.at >= len(self.source):
            return len(self.target), False
        number = max(place for place, (start, _) in enumerate(self.source_words) if start < atom.at)
        start, end = self.source_words[number]
        rest, begun = self.source[atom.at : end], self.source[start : atom.at]
        if not rest and atom.space_before and not atom.space_after:
            return self.target_words[self._target_of(number + 1)][0], True
        if begun and rest and all(map(_is_mark, begun)):
            low, high = self.target_words[self._target_of(number)]
            inner = self._without_marks(low, high)[0]
            return (low + len(begun) if self.target.startswith(begun, low) else inner), True
        low, high = self.target_words[self._target_of(number, is_last=True)]
        if not rest or self.target[low:high].endswith(rest):
            return high - len(rest), False
        inner = self._without_marks(low, high)[1]
        return (inner if inner > low else high), False

    # Writing

    def _render(self, nodes: Sequence[Atom | Element], low: int, high: int, within: list[Element]) -> str:
        """The target's characters with markup."""
        ranges = [self.ranges[id(node)] for node in nodes if isinstance(node, Element)]
        places = []
        for order, node in enumerate(nodes):
            if isinstance(node, Element):
                places.append((self.ranges[id(node)][0], order, node, False))
                continue
            spot, is_before = self._spot(node)
            spot = min(max(spot, low), high)
            for start, end in ranges:
                spot = end if start < spot < end else spot
            places.append((spot, order, node, is_before))
        parts, done = [], low
        for spot, _, node, is_before in sorted(places, key=lambda place: place[:2]):
            spot = max(spot, done)  # an element without words may have its place within another
            parts.append(self._text(done, spot, within))
            done = spot
            if isinstance(node, Element):
                done = max(spot, self.ranges[id(node)][1])
                parts.append(self._element(node, spot, done, within))
            else:
                raw = "".join(map(self.raw, node.markup))
                before, after = (node.space_before, False) if not is_before else (False, node.space_after)
                parts.append(" " * before + raw + " " * after)
        parts.append(self._text(done, high, within))
        return "".join(parts)

    def _element(self, element: Element, low: int, high: int, within: list[Element]) -> str:
        inner = self._render(element.nodes, low, high, [*within, element])
        if not inner and element.open.is_optional:
            return ""
        return self.raw(element.open) + inner + self.raw(element.close)

    def _text(self, low: int, high: int, within: list[Element]) -> str:
        """The target's characters as they are written, with folds in the place of spaces."""
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
        """Folds by the target's spaces that they replace, in proportion to the source."""
        gaps = [
            (end, self.target[start].isalpha())
            for (_, end), (start, _) in zip(self.target_words, self.target_words[1:], strict=False)
            if start == end + 1
        ]
        folds: dict[int, list[Markup]] = {}
        for at, markup in self.paragraph.folds:
            ideal = at * len(self.target) / len(self.source)
            possible = [end for end, is_letter in gaps if is_letter or not markup.is_before_letter]
            gap = min(possible, key=lambda each: abs(each - ideal), default=len(self.target))
            folds.setdefault(gap, []).append(markup)
            gaps = [each for each in gaps if each[0] > gap]
        return folds

    def _folds_at(self, place: int, within: list[Element]) -> str:
        parts = []
        for fold in self.folds.get(place, []):
            elements = within if fold.ends_elements else []
            parts += [self.raw(element.close) for element in reversed(elements)]
            parts.append(self.raw(fold))
            parts += [self.raw(element.open) for element in elements]
        return "".join(parts)
