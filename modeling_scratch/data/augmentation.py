"""
Changes to training pairs, drawn anew in every epoch, by functions that recipes name (`data.augment`). Some of them also
imitate how people write, to score a model on it (`NOISES`).

To add one, put a function into `AUGMENTATIONS`: before training from Python, or here.
"""

import difflib
import inspect
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np

from ..errors import UserError
from ..languages import base_language
from ..model.kept_words import KEPT
from ..model.sentences import space_between
from ..recipe.schema import SOURCE, TARGET
from .copied_words import Copies, find_copied_words

# Given a source, its target and a source of randomness, returns the changed pair. It must take any pair, and get all
# its randomness from the generator: a resumed run must make the same changes. A function may take more, by these names:
# languages: the codes of source and target, "" where there are none; pairs: a sample of the training pairs; copies:
# `Copies` of the words in these that translate each other. Kept words, such as {name}, stay as they are.
Augmentation = Callable[..., tuple[str, str]]
Pairs = Sequence[tuple[str, str]]
Languages = tuple[str, str]

_NONE = "", ""  # languages
_LETTER = "\ua7f7"  # has no capital; hardly any text has it
_OTHERS = "\u3002\uff01\uff1f\u061f\u0964"  # full stops, ! and ? in Chinese and Japanese, Arabic, and Hindi
_FINAL_MARKS = f".!?\u2026{_OTHERS}"
_SAME = str.maketrans(_OTHERS, ".!??.")
_TOKENS_OF_SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|%\d\d|.")


# -- case --------------------------------------------------------------------------------------------------------------

_DOTTED = {"az", "tr"}  # languages with i and \u0130, and \u0131 and I
_FIRST_LETTER = re.compile(r"(?<!\S)([^\w\s]*)([^\W\d_])")
# In NFD: Greek capitals have no accents but the dialytika, also where only it now tells two vowels from a diphthong.
# The word that is one eta keeps its accent.
_GREEK_ACCENTS = re.compile(
    "(?<!\\w)(\u03b7\u0301)(?!\\w)|(?:(?<=[\u0391-\u03c9])|(?<=\u0308))[\u0300\u0301\u0313\u0314\u0342]+"
)
_GREEK_HIATUS = re.compile("([\u03b1\u03b5\u03b7\u03b9\u03bf\u03c5\u03c9]\u0301[\u03b9\u03c5])(?!\u0308)")


def lower_case(source: str, target: str, random: np.random.Generator, languages: Languages = _NONE) -> tuple[str, str]:
    """The source in lower case; the target stays, so that the model writes properly what was typed carelessly."""
    return _beside_kept(source, partial(_lower, language=languages[0])), target


def upper_case(source: str, target: str, random: np.random.Generator, languages: Languages = _NONE) -> tuple[str, str]:
    """Both sides in capitals, as OpusTrainer does: who writes a warning or a heading in capitals wants it so."""
    source, target = (
        _beside_kept(text, partial(_upper, language=language))
        for text, language in zip((source, target), languages, strict=True)
    )
    return source, target


def title_case(source: str, target: str, random: np.random.Generator, languages: Languages = _NONE) -> tuple[str, str]:
    """
    The source with a capital at the beginning of each word, as in English headlines. The target stays, since most
    languages write headlines as they write sentences (OpusTrainer changes both).
    """

    def with_capitals(text: str) -> str:
        return _FIRST_LETTER.sub(lambda match: match[1] + _title(match[2], languages[0]), text)

    return _beside_kept(source, with_capitals), target


def _lower(text: str, language: str) -> str:
    if base_language(language) in _DOTTED:
        text = text.replace("\u0130", "i").replace("I", "\u0131")
    return text.lower()


def _upper(text: str, language: str) -> str:
    """In capitals, by the rules of Unicode's SpecialCasing.txt and, for Greek, of ICU."""
    base = base_language(language)
    if base in _DOTTED:
        text = text.replace("i", "\u0130")
    if base == "el":
        text = unicodedata.normalize("NFD", text.lower())
        text = _GREEK_HIATUS.sub("\\1\u0308", text)
        text = unicodedata.normalize("NFC", _GREEK_ACCENTS.sub(lambda match: match[1] or "", text))
    return text.upper()


def _title(letter: str, language: str) -> str:
    return _upper(letter, language) if base_language(language) in _DOTTED else letter.title()


# -- punctuation -------------------------------------------------------------------------------------------------------


def drop_final_punctuation(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """Both sides without their final mark, such as the full stop of a sentence, if it is the same."""
    kept = [text.rstrip(_FINAL_MARKS) for text in (source, target)]
    marks = [text[len(rest) :].translate(_SAME) for text, rest in zip((source, target), kept, strict=True)]
    return (kept[0].rstrip(), kept[1].rstrip()) if marks[0] == marks[1] else (source, target)


def change_final_punctuation(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """
    The source's final mark two or three times, after a space, or in place of one of other scripts that of English; the
    target stays.
    """
    rest = source.rstrip(_FINAL_MARKS)
    if not (marks := source[len(rest) :]) or not rest:
        return source, target
    variants = [marks + marks[-1], marks + 2 * marks[-1], f" {marks}", marks.translate(_SAME)]
    return rest + variants[int(random.integers(len(variants)))], target


def drop_punctuation(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """
    The source without marks that end sentences or their parts, and without quotation marks. The target loses its final
    mark, if it is the same, and keeps the others, which its grammar may ask for.
    """
    dropped, target = drop_final_punctuation(source, target, random)
    return _beside_kept(dropped, lambda text: _punctuation().sub(" ", text)).strip(), target


@cache
def _punctuation() -> Any:
    """Punctuation but within words and numbers of scripts with spaces: don't, 3.5."""
    import regex  # it knows the properties; Transformers and sacreBLEU depend on it

    marks, within = r"[\p{Terminal_Punctuation}\p{Quotation_Mark}\u2026\xa1\xbf]", r"[\w\p{M}]"
    wide = rf"[\u3000-\u303f\uff00-\uffef&&{marks}]"
    return regex.compile(rf" *(?:(?<!{within}){marks}|{marks}(?!{within})|{wide})+ *", regex.V1)


# -- accents -----------------------------------------------------------------------------------------------------------

_WITHOUT_UMLAUTS = str.maketrans(
    dict(zip("\xe4\xf6\xfc\xc4\xd6\xdc\xdf", ("ae", "oe", "ue", "Ae", "Oe", "Ue", "ss"), strict=True))
)


def drop_accents(
    source: str, target: str, random: np.random.Generator, languages: Languages = _NONE
) -> tuple[str, str]:
    """
    The source without accents, strokes and other marks on Latin and Greek letters, and without the dots of Russian
    \u0451; half of German, with ae for \xe4 and the like. The marks of other scripts are vowels or other letters, and
    stay. So does the target.
    """
    if base_language(languages[0]) == "de" and random.random() < 0.5:
        source = _beside_kept(source, lambda text: text.translate(_WITHOUT_UMLAUTS))
    return _beside_kept(source, lambda text: unicodedata.normalize("NFC", text).translate(_accents())), target


@cache
def _accents() -> dict[int, str]:
    """What stands for letters with accents, by their names in Unicode, and nothing for accents of their own."""
    found = dict.fromkeys(range(0x300, 0x370), "") | {0x131: "i", 0x451: "\u0435", 0x401: "\u0415"}
    for code in chain(range(0xC0, 0x250), range(0x370, 0x400), range(0x1E00, 0x2000)):
        name, _, marks = unicodedata.name(chr(code), "").partition(" WITH ")
        if marks and name.startswith(("LATIN ", "GREEK ")) and chr(code).isalpha():
            with suppress(KeyError):  # LAMBDA WITH STROKE, of which there is no other
                found[code] = unicodedata.lookup(name)
    return found


# -- typing errors -----------------------------------------------------------------------------------------------------

MISSPELT = 0.1  # the share of words
# The rows of letters on keyboards, as xkeyboard-config 2.35 has them (symbols/us, de, fr, ru).
_LAYOUTS = {
    "": ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    "de": ("qwertzuiop\xfc", "asdfghjkl\xf6\xe4", "yxcvbnm"),
    "fr": ("azertyuiop", "qsdfghjklm", "wxcvbn"),
    "ru": (
        "\u0439\u0446\u0443\u043a\u0435\u043d\u0433\u0448\u0449\u0437\u0445\u044a",
        "\u0444\u044b\u0432\u0430\u043f\u0440\u043e\u043b\u0434\u0436\u044d",
        "\u044f\u0447\u0441\u043c\u0438\u0442\u044c\u0431\u044e",
    ),
}
_BEGINS = 0.0, 0.25, 0.75  # of the rows, in widths of a key (its geometry/pc)


def misspell(source: str, target: str, random: np.random.Generator, languages: Languages = _NONE) -> tuple[str, str]:
    """
    The source with a mistake in a tenth of its words of three letters or more: a letter is left out, doubled or swapped
    with the next one, or one that is beside it on the keyboard stands in its place or after it. The target stays.
    Keyboards are those of German, French, Russian and, for all other Latin letters, English; letters of other alphabets
    have the first three mistakes. Scripts without an alphabet, such as Chinese, Thai or Korean, stay.
    """
    words = [match.span() for match in _alphabetic_words().finditer(source)]
    chosen = np.flatnonzero(random.random(len(words)) < MISSPELT)
    if not len(chosen):
        return source, target
    kept, near = KEPT.spans(source), _neighbours(base_language(languages[0]))
    for number in chosen[::-1].tolist():
        start, end = words[number]
        if not any(start < last and first < end for first, last in kept):
            source = source[:start] + _misspelt(source[start:end], near, random) + source[end:]
    return source, target


def _misspelt(word: str, near: Mapping[str, str], random: np.random.Generator) -> str:
    place, kind = divmod(int(random.integers(5 * len(word))), 5)
    before, letter, after = word[:place], word[place], word[place + 1 :]
    if kind > 2 and (others := near.get(letter.lower())):
        other = others[int(random.integers(len(others)))]
        other = other.upper() if letter.isupper() else other
        return before + (letter if kind == 3 else "") + other + after
    if kind == 1 and after and after[0] != letter:
        return before + after[0] + letter + after[1:]
    return before + (2 * letter if kind == 2 else "") + after


@cache
def _alphabetic_words() -> Any:
    """Words of letters of an alphabet, by the classes of Unicode's line breaking; the last one has no mark after it."""
    import regex

    return regex.compile(r"(?:(?=\p{L})[\p{LB=AL}\p{LB=HL}]){3,}(?!\p{M})")


@cache
def _neighbours(language: str) -> dict[str, str]:
    """The letters beside each letter on the keyboard of a language."""
    places = {
        letter: (row, begin + column)
        for row, (letters, begin) in enumerate(zip(_LAYOUTS.get(language, _LAYOUTS[""]), _BEGINS, strict=True))
        for column, letter in enumerate(letters)
    }
    return {
        letter: "".join(
            other
            for other, (other_row, x) in places.items()
            if other != letter and abs(other_row - row) <= 1 and abs(x - own) <= 1
        )
        for letter, (row, own) in places.items()
    }


# -- shorter and longer pairs ------------------------------------------------------------------------------------------


def cut_phrase(source: str, target: str, random: np.random.Generator, copies: Copies) -> tuple[str, str]:
    """
    A word of the source and its translation, or half the time both with the words before them that translate each
    other, in place of the pair, as dictionaries and menus have them; by `find_copied_words`.
    """
    links = copies.possible(source, target)
    if not links:
        return source, target
    link = links[int(random.integers(len(links)))]
    (start, end), (first, last) = copies.phrase(source, target, link) if random.random() < 0.5 else link
    return source[start:end], target[first:last]


def join_sentences(
    source: str, target: str, random: np.random.Generator, pairs: Pairs, languages: Languages = _NONE
) -> tuple[str, str]:
    """The pair and another one, drawn from a sample of the training pairs, in one line."""
    other = pairs[int(random.integers(len(pairs)))]
    if not (source and target and all(other)):
        return source, target
    both = zip((source, target), other, map(space_between, languages), strict=True)
    source, target = (first.rstrip() + space + second.lstrip() for first, second, space in both)
    return source, target


# -- numbers -----------------------------------------------------------------------------------------------------------


def change_numbers(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """
    Other digits, the same on both sides, in numbers that both sides have equally often, so that the model learns to
    copy any number. The last two digits stay, since plurals depend on them.
    """
    sides = [_NUMBER.findall(_LETTER.join(_parts_beside_kept(text))) for text in (source, target)]
    others = {}
    for number in dict.fromkeys(sides[0]):
        if sides[0].count(number) == sides[1].count(number):
            digits = len(number) - 2
            first = int(random.integers(0 if number[0] == "0" else 10 ** (digits - 1), 10**digits))
            others[number] = f"{first:0{digits}}{number[-2:]}"
    if not others:
        return source, target
    source, target = (
        _beside_kept(text, lambda rest: _NUMBER.sub(lambda match: others.get(match[0], match[0]), rest))
        for text in (source, target)
    )
    return source, target


_NUMBER = re.compile(r"(?<!\w)[0-9]{3,18}(?!\w)")


# -- molecules ---------------------------------------------------------------------------------------------------------


def random_smiles(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """
    The source's molecules in another of their equivalent spellings and in another order (Tetko et al. 2020,
    https://arxiv.org/abs/2003.02804); the target stays. A source that RDKit cannot read stays too. `>` separates
    reactants and reagents, as in USPTO; there may be spaces between tokens.
    """
    sides = []
    for side in "".join(source.split()).split(">"):
        molecules = [_random_spelling(molecule, random) for molecule in side.split(".")]
        if None in molecules:
            return source, target
        random.shuffle(molecules)
        sides.append(".".join(map(str, molecules)))
    spelled = ">".join(sides)
    return " ".join(_TOKENS_OF_SMILES.findall(spelled)) if " " in source.strip() else spelled, target


def _random_spelling(molecule: str, random: np.random.Generator) -> str | None:
    from rdkit import Chem, rdBase  # from an extra of this package

    with rdBase.BlockLogs():
        read = Chem.MolFromSmiles(molecule)
    if read is None:
        return None
    if read.GetNumAtoms() == 0:
        return ""
    return Chem.MolToRandomSmilesVect(read, 1, randomSeed=int(random.integers(2**31)))[0]


# -- all functions -----------------------------------------------------------------------------------------------------


AUGMENTATIONS: dict[str, Augmentation] = {
    function.__name__: function
    for function in (
        lower_case,
        upper_case,
        title_case,
        drop_final_punctuation,
        change_final_punctuation,
        drop_punctuation,
        drop_accents,
        misspell,
        cut_phrase,
        join_sentences,
        change_numbers,
        random_smiles,
    )
}
# How people write, on which `scratch evaluate --noise` scores a model.
NOISES = ("misspell", "lower_case", "upper_case", "drop_punctuation", "drop_accents", "join_sentences")


def _beside_kept(text: str, change: Callable[[str], str]) -> str:
    """A text with changes in all but its kept words, which count as letters: the ' of {name}'s is within a word."""
    kept = [text[start:end] for start, end in KEPT.spans(text)]
    if not kept:
        return change(text)
    changed = change(_LETTER.join(_parts_beside_kept(text))).split(_LETTER)
    if len(changed) != len(kept) + 1:  # the text has this letter
        return text
    return "".join(chain.from_iterable(zip(changed, kept, strict=False))) + changed[-1]


def _parts_beside_kept(text: str) -> list[str]:
    """What is before, between and after the kept words."""
    ends = [0, *chain.from_iterable(KEPT.spans(text)), len(text)]
    return [text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True)]


@dataclass(frozen=True)
class Augmenter:
    """
    Changes pairs by several functions, one after the other.

    Args:
        functions: each with the probability that it changes a pair.
    """

    functions: Sequence[tuple[Augmentation, float]]
    seed: int

    def __call__(self, pairs: Mapping[str, Sequence[str]], places: Sequence[Sequence[int]]) -> dict[str, Sequence[str]]:
        """
        The changed pairs, of the columns `source` and `target`; other columns stay.

        Args:
            places: for each pair the numbers, such as epoch and row, that together with the seed determine its changes.
        """
        changed = []
        for source, target, place in zip(pairs[SOURCE], pairs[TARGET], places, strict=True):
            random = np.random.default_rng([self.seed, *place])
            for function, probability in self.functions:
                if random.random() < probability:
                    source, target = function(source, target, random)
            changed.append((source, target))
        sources, targets = zip(*changed, strict=True)
        return {**pairs, SOURCE: sources, TARGET: targets}


def make_augmenter(
    probabilities: Mapping[str, float],
    seed: int,
    languages: Languages | None = None,
    sample: Callable[[], Pairs] = lambda: [("C", "C")],
) -> Augmenter | None:
    """
    The augmenter of a recipe; None if it names no function.

    Args:
        probabilities: of the functions, by their names in `AUGMENTATIONS`.
        languages: the codes of source and target; None: the pairs are in no languages.
        sample: returns a sample of the training pairs; called if a function takes it.

    Raises:
        UserError: there is no such function.
        ModuleNotFoundError: a function needs a library that is not installed.
    """
    given: dict[str, Callable[[], Any]] = {"languages": lambda: languages or _NONE, "pairs": cache(sample)}
    given["copies"] = lambda: Copies(seed, *find_copied_words(given["pairs"]()))
    functions = []
    for name, probability in probabilities.items():
        if name not in AUGMENTATIONS:
            close = difflib.get_close_matches(name, AUGMENTATIONS, n=1, cutoff=0)
            raise UserError(
                f"data.augment: there is no {name!r}; did you mean {close[0]!r}? ({', '.join(AUGMENTATIONS)})"
            )
        wanted = given.keys() & inspect.signature(AUGMENTATIONS[name]).parameters
        function = partial(AUGMENTATIONS[name], **{key: given[key]() for key in wanted})
        function("C", "C", np.random.default_rng(0))  # fails now if a library is missing
        functions.append((function, probability))
    return Augmenter(functions, seed) if functions else None
