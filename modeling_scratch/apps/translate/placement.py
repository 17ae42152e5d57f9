"""Places a paragraph's markup in its translation, around the translations of the words that it enclosed."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from ...files import one_line
from ...model.confidence import DOUBTFUL
from ...model.kept_words import RESERVED, KeptWords
from ...model.text import Reading, Sentences, TextRules, is_translatable
from ...model.translations import Translation
from .marked_text import Atom, Element, Markup, Paragraph, Token, cut_kept_words, joined_kept_words, paragraph_of
from .paragraphs import Translated, guessed_links

# Escapes text. The second argument has the characters that were entities in the source, with these entities.
Write = Callable[[str, dict[str, str]], str]
_PART_OF_WORDS = "%&#@*/\\"  # punctuation, according to Unicode


def placed(paragraph: Paragraph, translated: Translated, write: Write, raw: Callable[[Markup], str]) -> str:
    """
    A translated paragraph with its markup.

    Each element goes around one run of words, so that it occurs once and crosses no other element: the longest run of
    words linked to the words that it enclosed. It may contain words without links. If there are no links at all, words
    at the same relative positions are linked.

    Args:
        write: escapes text.
        raw: returns markup as it is written, with its attributes translated.
    """
    return _Placement(paragraph, translated, write, raw).written()


def _spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" and character not in _PART_OF_WORDS


def _without_marks(text: str, low: int, high: int) -> tuple[int, int]:
    """Remove punctuation and white space from the edges of a range of a text's characters."""

    def is_edge(position: int) -> bool:
        return _is_mark(text[position]) or text[position].isspace()

    while low < high and is_edge(low):
        low += 1
    while low < high and is_edge(high - 1):
        high -= 1
    return low, high


def _nearest(numbers: Sequence[int], wanted: float, first: int = 0) -> int | None:
    """The index, at least `first`, of the number nearest to `wanted` in a sorted list; None if there is none."""
    index = bisect_left(numbers, wanted, first)
    near = [place for place in (index - 1, index) if first <= place < len(numbers)]
    return min(near, key=lambda place: abs(numbers[place] - wanted), default=None)


class _Placement:
    """Chooses positions in the translation for a paragraph's markup. Ranges are pairs of a start and an end."""

    def __init__(self, paragraph: Paragraph, translated: Translated, write: Write, raw: Callable[[Markup], str]):
        self.paragraph, self.write, self.raw = paragraph, write, raw
        self.source, self.target = paragraph.text, translated.text.strip()
        self.source_words, self.target_words = _spans(self.source), _spans(self.target)
        self.targets_of: dict[int, set[int]] = defaultdict(set)  # the target words linked to each source word
        for source, target in translated.links or guessed_links(self.source, self.target):
            self.targets_of[source].add(target)
        self.linked_sources = sorted(self.targets_of)
        self.starts = dict(reversed(translated.starts))  # of several sentences in one word, the first
        linked_targets = set().union(*self.targets_of.values())
        self.linked_before = [0]  # how many linked words precede each target word
        for word in range(len(self.target_words)):
            self.linked_before.append(self.linked_before[-1] + (word in linked_targets))
        self.without_marks = cache(_without_marks)  # since one word of punctuation may have many atoms in it
        self.copied: dict[str, list[Markup]] = defaultdict(list)  # what each reserved character stands for, in order
        for character, markup in paragraph.copied:
            self.copied[character].append(markup)
        self.ranges: dict[int, tuple[int, int]] = {}  # of each element, by id, in target characters
        self.folds = self._placed_folds()
        self.spaces = self._placed_spaces()

    def written(self) -> str:
        """The translation with its markup."""
        source_words, target_words = (0, len(self.source_words)), (0, len(self.target_words))
        self._place(self.paragraph.nodes, target_words, (0, len(self.target)), source_words)
        whole = (0, len(self.source))
        text = self._render(self.paragraph.nodes, whole, 0, len(self.target), [])
        return text + self._folds_at(len(self.target), [])

    # Elements, by words

    def _enclosed_words(self, element: Element) -> tuple[int, int]:
        """The source words that an element encloses at least in part."""
        first = bisect_right(self.source_words, element.start, key=lambda span: span[1])
        return first, bisect_left(self.source_words, element.end, key=lambda span: span[0])

    def _is_within_words(self, element: Element) -> bool:
        """Whether an element begins or ends within a word of the source."""
        first, last = self._enclosed_words(element)
        return (element.start, element.end) != (self.source_words[first][0], self.source_words[last - 1][1])

    def _place(
        self,
        nodes: Sequence[Atom | Element],
        words: tuple[int, int],
        bounds: tuple[int, int],
        around: tuple[int, int],
    ) -> None:
        """
        Choose the target words for each element.

        Args:
            words: the range of target words available.
            bounds: the range of target characters available.
            around: the source words of the enclosing element.
        """
        elements = [node for node in nodes if isinstance(node, Element)]
        enclosed = [self._enclosed_words(element) for element in elements]
        free = list(range(*words)) if elements else []  # sorted
        chosen: list[tuple[int, int] | None] = []
        for index, sources in enumerate(enclosed):
            # A word that belongs to two elements goes to the first.
            first = max(sources[0], enclosed[index - 1][1]) if index else sources[0]
            is_all = sources == around and len(elements) == 1
            run = words if is_all else self._longest_run(range(first, sources[1]), free)
            chosen.append(run)
            if run:
                del free[bisect_left(free, run[0]) : bisect_left(free, run[1])]
        done = bounds[0]
        for index, element in enumerate(elements):
            run, (low, high) = chosen[index], bounds
            if run is None and index and enclosed[index][1] <= enclosed[index - 1][1]:
                run, low = chosen[index - 1], done  # within the last word of the previous element
            elif run is None:
                run = self._nearest_free(enclosed[index][0], free, words[0])
            chosen[index] = run
            if enclosed[index] == around and len(elements) == 1 and not self._is_within_words(element):
                begin, done = bounds  # all of it, also marks that the source does not have
            else:
                begin, done = self._characters(element, *run, low, high)
            self.ranges[id(element)] = begin, done
            self._place(element.nodes, run, (begin, done), enclosed[index])

    def _longest_run(self, sources: range, free: list[int]) -> tuple[int, int] | None:
        """The run of free target words with the most links to these source words, and no word linked only to others."""
        linked = sorted({word for source in sources for word in self.targets_of.get(source, ())})
        best, most, count, start, last = None, 0, 0, 0, -1
        for word in linked:
            index = bisect_left(free, word)
            if index == len(free) or free[index] != word:
                continue
            is_near = last >= 0 and self.linked_before[word] == self.linked_before[last + 1]
            if is_near and index - bisect_left(free, last) == word - last:
                count += 1
            else:
                start, count = word, 1
            last = word
            if count > most:
                best, most = (start, word + 1), count
        return best

    def _nearest_free(self, source_word: int, free: list[int], low: int) -> tuple[int, int]:
        """The free target word nearest to a source word's translation, as a range; an empty range if none is free."""
        index = _nearest(free, self._target_of(source_word))
        if index is None:
            return low, low
        word = free.pop(index)
        return word, word + 1

    def _target_of(self, source_word: int, is_last: bool = False) -> int:
        """The first or last target word linked to a source word or, if it has no links, to the nearest that has."""
        index = bisect_left(self.linked_sources, source_word)
        near = self.linked_sources[max(index - 1, 0) : index + 1]
        if not near:
            return 0
        least = min(abs(word - source_word) for word in near)
        words = set().union(*(self.targets_of[word] for word in near if abs(word - source_word) == least))
        return max(words) if is_last else min(words)

    def _characters(self, element: Element, start: int, end: int, least: int, greatest: int) -> tuple[int, int]:
        """
        The range of an element's target characters, with punctuation at its edges only where the source has it too.

        Args:
            start, end: the range of its target words.
            least, greatest: the range of target characters available.
        """
        if start >= end:
            low = high = self.target_words[start][0] if start < len(self.target_words) else len(self.target)
        else:
            low, high = self.target_words[start][0], self.target_words[end - 1][1]
        low, high = max(low, least), min(high, greatest)
        if low >= high:
            position = min(max(low, least), greatest)
            return position, position
        text = self.source[element.start : element.end]
        first, last = self._enclosed_words(element)
        before = self.source[self.source_words[first][0] : element.start]
        after = self.source[element.end : self.source_words[last - 1][1]]
        if before or after:
            # Part of a word stays part of a word.
            same = self.target_words[start][0] + len(before)
            is_there = same >= low and self.target.startswith(text, same, high)
            if (found := same if is_there else self.target.find(text, low, high)) >= 0:
                return found, found + len(text)
            # So does punctuation, such as the colon after "**Why?**:".
            low += len(before) * (all(map(_is_mark, before)) and self.target.startswith(before, low, high))
            high -= len(after) * (all(map(_is_mark, after)) and self.target.endswith(after, low, high))
        inner_low, inner_high = self.without_marks(self.target, low, high)
        if inner_low < inner_high:
            low = low if _is_mark(text[0]) else inner_low
            high = high if _is_mark(text[-1]) else inner_high
        return low, high

    # Atoms

    def _position_of(self, atom: Atom, source: tuple[int, int], low: int, high: int) -> tuple[int, bool]:
        """
        The position in the target where an atom goes, and whether it belongs to what follows.

        Args:
            source: the source characters of the element that contains the atom.
            low, high: the target characters of this element.
        """
        if atom.is_before_word and self.target_words:
            if atom.at > source[0]:
                number = bisect_right(self.source_words, atom.at, key=lambda span: span[0]) - 1
                first, last = self.target_words[self._target_of(number + (atom.at >= self.source_words[number][1]))]
                low, high = max(low, first), min(high, last)
            return (self.without_marks(self.target, low, high)[0] if low < high else high), True
        if atom.at <= source[0] or not self.target_words:
            return low, True
        if atom.at >= source[1]:
            return high, False
        position, is_before = self._position_by_words(atom)
        return min(max(position, low), high), is_before

    def _position_by_words(self, atom: Atom) -> tuple[int, bool]:
        """The position and whether the atom belongs to what follows, according to the word before the atom."""
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
        if begun and rest and atom.at <= self.without_marks(self.source, start, end)[0]:
            low, high = self.target_words[self._target_of(number)]
            inner = self.without_marks(self.target, low, high)[0]
            return (low + len(begun) if self.target.startswith(begun, low) else inner), True
        low, high = self.target_words[self._target_of(number, is_last=True)]
        if not rest or self.target.endswith(rest, low, high):
            # Directly after the bracket in "see(`a` and b)", it belongs to what follows.
            return high - len(rest), bool(rest and atom.space_after) and not atom.space_before
        inner = self.without_marks(self.target, low, high)[1]
        return (inner if inner > low else high), False

    # Writing

    def _render(
        self, nodes: Sequence[Atom | Element], source: tuple[int, int], low: int, high: int, within: list[Element]
    ) -> str:
        """The target from `low` to `high`, with markup. `source` is the corresponding range of source characters."""
        ranges = sorted(self.ranges[id(node)] for node in nodes if isinstance(node, Element))
        positions: list[tuple[int, int, Atom | Element, bool]] = []
        for order, node in enumerate(nodes):
            if isinstance(node, Element):
                positions.append((self.ranges[id(node)][0], order, node, False))
                continue
            last = positions[-1] if positions and isinstance(positions[-1][2], Atom) else None
            if last and last[2].at == node.at and not node.space_before:  # directly after another atom
                positions.append((last[0], order, node, last[3]))
                continue
            position, is_before = self._position_of(node, source, low, high)
            number = bisect_left(ranges, (position,)) - 1  # of the last element that starts before the atom
            position = max(position, ranges[number][1]) if number >= 0 else position
            if (
                is_before
                and node.space_before
                and not node.is_before_word
                and self.target[max(position - 1, 0) : position].isspace()
            ):
                self.spaces[position - 1] = node.space_before
            positions.append((position, order, node, is_before))
        parts, done = [], low
        for position, _, node, is_before in sorted(positions, key=lambda item: item[:2]):
            position = max(position, done)  # an element without words may lie within another
            parts.append(self._text(done, position, within))
            done = position
            if isinstance(node, Element):
                done = max(position, self.ranges[id(node)][1])
                parts.append(self._element(node, position, done, within))
            else:
                raw = "".join(map(self.raw, node.markup))
                written = "".join(parts[-2:])  # either part may be empty
                is_after_space = written[-1:].isspace() or written.endswith(self.spaces.get(position - 1, " "))
                before = bool(node.space_before) and (not is_before or (bool(written) and not is_after_space))
                before |= written[-1:].isalnum() and raw[:1].isalnum()  # so that an address stays intact
                after = (is_before and bool(node.space_after)) or self._is_parted(node, position)
                after |= raw[-1:].isalnum() and self.target[position : min(position + 1, high)].isalnum()
                before, after = (False, False) if node.is_before_word else (before, after)
                parts.append((node.space_before or " ") * before + raw + (node.space_after or " ") * after)
        parts.append(self._text(done, high, within))
        return "".join(parts)

    def _is_parted(self, atom: Atom, position: int) -> bool:
        """Whether something directly follows an atom, as in "{name}'s", and another word follows in the target."""
        rest, letters = self.source[atom.at : atom.at + 1].strip(), re.compile(r"\w*").match
        word = letters(self.target, position)[0]
        if not (atom.at or position) and rest.isalnum() and 0 in self.targets_of.get(0, ()):
            return False  # at the beginning, its translation follows
        return bool(rest and word) and not atom.space_after and word != letters(self.source, atom.at)[0]

    def _element(self, element: Element, low: int, high: int, within: list[Element]) -> str:
        inner = self._render(element.nodes, (element.start, element.end), low, high, [*within, element])
        if not inner and element.open.is_optional:
            return ""
        opening, closing = self.raw(element.open), self.raw(element.close)
        beside = self.target[low - 1 : low] + self.target[high : high + 1]
        if set(opening) == {"_"} and any(map(str.isalnum, beside)):  # within a word, where Markdown requires *
            opening = closing = "" if any("*" in self.raw(outer.open) for outer in within) else "*" * len(opening)
        return opening + inner + closing

    def _text(self, low: int, high: int, within: list[Element]) -> str:
        """The target from `low` to `high`, escaped, with folds and the source's white space instead of spaces."""
        parts, done = [], low
        for position in range(low, high):
            if position in self.folds or position in self.spaces:
                space = self.spaces.get(position, "")
                space *= bool(space.strip(" ")) or position not in self.folds
                parts += [self._escaped(done, position), space, self._folds_at(position, within)]
                done = position + 1
        return "".join(parts) + self._escaped(done, high)

    def _escaped(self, low: int, high: int) -> str:
        parts = re.split(f"([{RESERVED}])", self.target[low:high])
        return "".join(
            self.raw(self.copied[part].pop(0)) if self.copied.get(part) else self.write(part, self.paragraph.written)
            for part in parts
        )

    # White space

    def _placed_spaces(self) -> dict[int, str]:
        """
        White space that browsers show as more than one space, by the position of the target space that it replaces: the
        one between the translations of the words beside it or, if these are apart, after the translation of the first.
        """
        pairs = enumerate(zip(self.target_words, self.target_words[1:], strict=False))
        possible = [word for word, ((_, end), (start, _)) in pairs if start == end + 1]
        wanted: list[tuple[int, str]] = []
        for at, space in self.paragraph.spaces:
            number = bisect_left(self.source_words, at, key=lambda span: span[0]) - 1
            before, after = (self.targets_of.get(word, set()) for word in (number, number + 1))
            between = [word for word in before if word + 1 in after] + [word for word in after if word + 1 in before]
            wanted.append((min(between, default=self._target_of(number, is_last=True)), space))
        spaces: dict[int, str] = {}
        index = -1
        for word, space in sorted(wanted, key=lambda pair: pair[0]):
            index = _nearest(possible, word, index + 1)
            if index is None:
                break  # there are fewer words
            spaces[self.target_words[possible[index]][1]] = space
        return spaces

    def _placed_folds(self) -> dict[int, list[Markup]]:
        """The folds by the position of the target space that they replace, chosen in proportion to the source."""
        pairs = zip(self.target_words, self.target_words[1:], strict=False)
        every = [end for (_, end), (start, _) in pairs if start == end + 1]
        before_letters = [gap for gap in every if self.target[gap + 1].isalpha()]
        folds: dict[int, list[Markup]] = {}
        gap = -1
        for at, markup in self.paragraph.folds:
            possible = before_letters if markup.is_before_letter else every
            wanted = at * len(self.target) / len(self.source)
            index = _nearest(possible, wanted, bisect_right(possible, gap))
            if index is None and not markup.stays:
                continue  # at the end, a line break would make an empty line
            gap = len(self.target) if index is None else possible[index]
            folds.setdefault(gap, []).append(markup)
        return folds

    def _folds_at(self, position: int, within: list[Element]) -> str:
        parts = []
        for fold in self.folds.get(position, []):
            elements = within if fold.ends_elements else []
            parts += [self.raw(element.close) for element in reversed(elements)]
            parts.append(self.raw(fold))
            parts += [self.raw(element.open) for element in elements]
        return "".join(parts)


# Plain text


def read_texts(
    texts: Sequence[str], rules: TextRules, kept: KeptWords | None, sentences: Sentences | None = None
) -> Reading:
    """
    Texts as a model reads them.

    Args:
        kept: what stays in them; None: nothing.
        sentences: as for `Reading`.
    """
    return (PlainTexts if kept and not rules.reserved else Reading)(texts, rules, kept, sentences)


class PlainTexts(Reading):
    """
    Texts for models of earlier versions, which read no reserved characters: kept words are left out, and placed by word
    alignments. What has no other words is not read.
    """

    def __init__(self, *arguments):
        # Of inputs with kept words: their tokens, in which these words are atoms, and the paragraph.
        self.to_align: dict[int, tuple[list[Token], Paragraph]] = {}
        super().__init__(*arguments)

    def _read(self, sentence: str) -> str:
        if not self.kept or not (spans := self.kept.spans(sentence)):
            return sentence
        tokens = joined_kept_words(cut_kept_words(sentence, sentence, spans))
        paragraph = paragraph_of(tokens, None)
        self.to_align[len(self.inputs)] = tokens, paragraph
        return paragraph.text if is_translatable(paragraph.text) else ""

    def _restored(self, place: int, translation: Translation) -> Translation:
        sentence, read, weights = self.sentences[place], self.inputs[place], translation.weights
        if place not in self.to_align:
            return translation
        if not read:
            return replace(translation, text=sentence.strip())
        tokens, paragraph = self.to_align[place]
        translated, written = as_translated(read, translation), list[tuple[str, int | None]]()
        numbers = {id(atom.markup[0]): -1 - number for number, atom in enumerate(paragraph.nodes)}  # of kept words

        def noted(text: str, number: int | None = None) -> str:
            written.append((text, number))
            return text

        text = placed(
            paragraph, translated, lambda text, _: noted(text), lambda markup: noted(markup.raw, numbers[id(markup)])
        )
        if weights is None:
            return replace(translation, text=text)
        parts = [(token.raw, numbers.get(id(token))) for token in tokens]
        sources, targets = _places(parts, read, sentence), _places(written, translated.text, text)
        # (words of the whole text, words of the model's)
        to_target = weights.new_zeros(len(text.split()), len(weights))
        to_source = weights.new_zeros(len(sentence.split()), weights.shape[1])
        for matrix, places in ((to_target, targets), (to_source, sources)):
            for word, holders in places.items():
                if word >= 0:
                    matrix[list(holders), word] = 1
        weights = to_target @ weights @ to_source.T
        for word in numbers.values():
            rows, columns = sorted(targets[word]), sorted(sources[word])
            for index in range(max(len(rows), len(columns))):  # the last of the shorter one is in several
                weights[rows[min(index, len(rows) - 1)], columns[min(index, len(columns) - 1)]] = 1
        return replace(translation, text=text, weights=weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-9))


def confidence_of(translation: Translation) -> float:
    """How far to trust an output; 1 for a text that is not translated, and if the model has no confidence."""
    return 1.0 if translation.confidence is None else translation.confidence


def is_doubtful(translation: Translation) -> bool:
    """Whether the model's confidence in an output is too low, or the place of a kept word is a guess."""
    return translation.lost_words or confidence_of(translation) < DOUBTFUL


def as_translated(source: str, translation: Translation) -> Translated:
    """A translation as one line, with the links of its words; guessed ones if it has no alignments."""
    text, weights = one_line(translation.text), translation.weights
    if weights is None:
        links = guessed_links(source, text)
    else:
        from ...inference.alignments import links_of

        links = links_of(weights)
    is_cut_or_doubtful = translation.is_cut or is_doubtful(translation)
    return Translated(text, links, is_doubtful=is_cut_or_doubtful, confidence=confidence_of(translation))


def _places(parts: Sequence[tuple[str, int | None]], plain: str, whole: str) -> dict[int, set[int]]:
    """
    The words of a whole text that hold the characters of each word of the plain one and of each kept word.

    Args:
        parts: of the whole text, each with the number of a kept word or None. Their white space does not count.
        plain: the text without kept words.
    """
    words = (index for index, word in enumerate(plain.split()) for _ in word)
    origins = [next(words) if kept is None else kept for part, kept in parts for _ in "".join(part.split())]
    holders = (index for index, word in enumerate(whole.split()) for _ in word)
    found: dict[int, set[int]] = defaultdict(set)
    for origin, holder in zip(origins, holders, strict=True):
        found[origin].add(holder)
    return found
