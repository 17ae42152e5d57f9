"""
One way from a text to what a model reads, and back from its outputs to a translation: cleaning, sentences, kept words,
features. Everything that translates goes this way. This file needs no PyTorch, and apps/web/page/text.js does the same.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .confidence import DOUBTFUL, Confidence
from .kept_words import KEPT, RESERVED, KeptWords, has_reserved, hide, restore_words, writes_all
from .sentences import beginnings, space_between
from .translations import Translation, Translations, joined, spread

# Characters that show nothing and mean nothing to a translator, but would make other words of those that they stand in:
# soft hyphens; zero-width spaces and joiners of words (U+200B, U+2060, U+FEFF); marks of direction (U+061C, U+200E,
# U+200F, U+202A to U+202E, U+2066 to U+2069); operators of mathematics and deprecated controls (the rest of U+2060 to
# U+206F). U+200C and U+200D stay, since they change how letters and emoji look. The pattern means the same to Python,
# to the tokenizers library and to JavaScript.
INVISIBLE = re.compile(r"[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")

# Ends each feature in a source. To `clean` it is white space, so neither a text nor a feature can contain it.
SEPARATOR = "\u001f"

DEFAULT_BATCH_TOKENS = 4096


def clean(text: str) -> str:
    """What models read of a source text: nothing invisible, and one space for white space of any kind."""
    return " ".join(INVISIBLE.sub("", text).split())


def is_translatable(text: str) -> bool:
    """
    Whether a text has a letter or a digit and so goes to a translator: 12:30 does, since other languages may write it
    differently. White space, punctuation and symbols on their own stay as they are.
    """
    return any(map(str.isalnum, text))


def left_as_it_is(text: str) -> str:
    """The output for a text that does not go to the model: the text without white space around it, if it shows any."""
    return text.strip() if clean(text) else ""


def has_whole_symbols(tokenizer: Any) -> bool:
    """
    Whether the vocabulary of a tokenizer of Transformers is of whole symbols, such as characters or phones, and lacks
    all others. To such a model any text may mean something: it reads texts that are not `is_translatable`, too.
    """
    return tokenizer.is_fast and type(tokenizer.backend_tokenizer.model).__name__ == "WordLevel"


def with_features(text: str, features: str = "", takes_any: bool = True) -> str:
    """
    What models read of a source: its features, each followed by `SEPARATOR`, and the text, all as `clean` leaves them;
    nothing for a text that does not go to the model.

    Args:
        features: conditions on the output, separated by semicolons, such as V;PST;3;SG.
        takes_any: every text goes to the model that is not blank; otherwise, those that are `is_translatable`.
    """
    text = clean(text) if takes_any or is_translatable(text) else ""
    tags = filter(None, map(clean, features.split(";"))) if text else ()
    return "".join(f"{tag}{SEPARATOR}" for tag in tags) + text


def says_nothing(text: str, is_translation: bool) -> bool:
    """Whether an output is blank or, as a translation of words, has neither a letter nor a digit."""
    return not (is_translatable(text) if is_translation else text.strip())


def check_inputs(texts: Sequence[str], features: Sequence[str], first: int = 0) -> None:
    """
    Raise ValueError if a text or its features are not a string, or not valid Unicode, or their numbers differ.

    Args:
        first: the number of the first text, for error messages.
    """
    if len(features) != len(texts):
        raise ValueError(
            f"there are features for {len(features)} inputs, but the number of inputs is {len(texts)}; several "
            "features of an input are one string, separated by semicolons"
        )
    for number, given in enumerate(zip(texts, features, strict=True), start=first):
        for name, text in zip(("input", "the features of input"), given, strict=True):
            if not isinstance(text, str):
                raise ValueError(f"{name} {number} is of type {type(text).__name__}; it must be a string")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"{name} {number} is not Unicode text: {error.reason} at {error.start}") from None


def is_panic(error: BaseException) -> bool:
    """
    Whether the tokenizers library (0.23) gave up, as it does if a regular expression takes too many steps on a text. It
    then raises pyo3_runtime.PanicException, which is no Exception and cannot be imported.
    """
    return type(error).__name__ == "PanicException"


def tokenized(
    encode: Callable[[list[str]], list[list[int]]],
    sentences: Sequence[str],
    limit: int | None,
    numbers: Sequence[int] | None = None,
    features: Sequence[str] | None = None,
    takes_any: bool = True,
) -> list[list[int]]:
    """
    The token ids of each sentence, as `with_features` leaves it; none for one that does not go to the model.

    Args:
        encode: the token ids of texts by a tokenizer, at least one text at once.
        limit: the most tokens that the model takes; None: no limit.
        numbers: of the text that each sentence belongs to, for error messages; None: each is a text, from 0.
        features: of each sentence; None: none.
        takes_any: see `with_features`.

    Raises:
        ValueError: a sentence or its features are not a string, not valid Unicode, or have more than `limit` tokens; or
            the tokenizer's regular expression gives up.
    """
    features = [""] * len(sentences) if features is None else features
    check_inputs(sentences, features)
    texts = [with_features(*given, takes_any) for given in zip(sentences, features, strict=True)]
    filled = [index for index, text in enumerate(texts) if text]
    ids: list[list[int]] = [[] for _ in sentences]
    if not filled:
        return ids
    try:
        rows = encode([texts[index] for index in filled])
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ValueError(f"the tokenizer cannot read one of the inputs: {error}") from None
    for index, row in zip(filled, rows, strict=True):
        if limit is not None and len(row) > limit:
            number = numbers[index] if numbers else index
            raise ValueError(
                f"input {number} has {len(row)} tokens, but the model takes {limit} (max_position_embeddings); "
                "nothing is truncated, so split it"
            )
        ids[index] = row
    return ids


def batches_by_length(
    lengths: Sequence[int], batch_size: int | None = None, batch_tokens: int | None = None
) -> list[list[int]]:
    """
    Group the indices of sentences into batches of similar length, longest first so that running out of memory happens
    at once. Empty sentences are left out.

    Args:
        lengths: in tokens.
        batch_size: the most sentences per batch; None: no limit.
        batch_tokens: the most tokens per batch including padding, unless a single sentence is longer; None: no limit.
    """
    batches: list[list[int]] = []
    filled = [index for index, length in enumerate(lengths) if length]
    for index in sorted(filled, key=lambda index: -lengths[index]):
        batch = batches[-1] if batches else []
        padded = (len(batch) + 1) * lengths[batch[0]] if batch else 0
        if not batch or len(batch) == batch_size or (batch_tokens is not None and padded > batch_tokens):
            batch = []
            batches.append(batch)
        batch.append(index)
    return batches


Sentences = Literal["line", "split"]


@dataclass(frozen=True)
class TextRules:
    """
    How a model reads texts. Training stores these facts in the tokenizer's config.

    Args:
        is_translation: whether the model translates.
        takes_any: see `with_features`.
        reserved: how many reserved characters the model has learned to copy; 0: kept words are read as other words.
        splits_lines: split lines into sentences, since hardly any source line in training had several.
        source_language, target_language: tags; "": unknown, or there are none.
    """

    is_translation: bool = True
    takes_any: bool = False
    reserved: int = 0
    splits_lines: bool = False
    source_language: str = ""
    target_language: str = ""

    @classmethod
    def of(cls, config: Mapping[str, Any], is_translation: bool, has_whole_symbols: bool) -> "TextRules":
        """The rules that a tokenizer's config has; those of earlier versions neither split nor replace."""
        return cls(
            is_translation=is_translation,
            takes_any=has_whole_symbols or not is_translation,
            reserved=config.get("reserved", 0) if is_translation else 0,
            splits_lines=is_translation and bool(config.get("splits_lines")),
            source_language=config.get("source_lang") or "",
            target_language=config.get("target_lang") or "",
        )

    def sentences(self, text: str, kept: KeptWords | None) -> list[str]:
        """The sentences of a text, without the white space between them."""
        places = beginnings(text, self.source_language, kept.spans(text) if kept else ())
        return [text[start:end].strip() for start, end in zip([0, *places], [*places, len(text)], strict=True)]

    def rated(self, translation: Translation, ids: Sequence[int], confidence: Confidence | None) -> Translation:
        """A translation of source tokens with how far to trust it, if the model has a confidence."""
        if confidence is None:
            return translation
        is_silent = says_nothing(translation.text, self.is_translation)
        number = confidence(ids, translation.length, translation.score, is_silent)
        return replace(translation, confidence=number, is_short=confidence.is_short(ids, translation.length))

    def best_ranks(self, read: str, count: int, several: int, text_of: Callable[[int], str]) -> Sequence[int]:
        """
        Which of `count` hypotheses for an input are its `several` best translations, given by rank: first those that
        have its reserved characters and no others.

        Args:
            text_of: decodes a hypothesis, given its rank.
        """
        best = range(min(count, several))
        if not self.reserved or all(writes_all(text_of(rank), read) for rank in best):
            return best
        return sorted(range(count), key=lambda rank: not writes_all(text_of(rank), read))[:several]


class Reading:
    """
    Texts as a model reads them, and their translations, which are put together again.

    Args:
        texts: each a sentence, or a line of several.
        rules: the model's.
        kept: what stays in translations; None: what `KEPT` names, of a model that has reserved characters.
        sentences: "split" each text into sentences, or translate it as one "line"; None: as the model's rules say.

    Attributes:
        inputs: what the model reads: each sentence, with reserved characters for kept words. Not yet cleaned.
        sentences, owners: of each input, the sentence, and the index of the text that it belongs to.
        to_align: the indices of inputs whose translations must have weights.
    """

    to_align: Collection[int] = ()

    def __init__(
        self,
        texts: Sequence[str],
        rules: TextRules,
        kept: KeptWords | None = None,
        sentences: Sentences | None = None,
    ):
        self.rules, self.kept = rules, kept or (KEPT if rules.reserved else None)
        self.texts, self.sentences, self.inputs, self.owners = texts, list[str](), list[str](), list[int]()
        splits = rules.splits_lines if sentences is None else sentences == "split"
        for index, text in enumerate(texts):
            for sentence in rules.sentences(text, kept or KEPT) if splits and rules.is_translation else [text]:
                self.sentences.append(sentence)
                self.inputs.append(self._read(sentence))
                self.owners.append(index)

    def _read(self, sentence: str) -> str:
        spans = self.kept.spans(sentence) if self.kept and self.rules.reserved else []
        return hide(sentence, spans, RESERVED[: self.rules.reserved]) if spans else sentence

    def of_inputs(self, values: Sequence[Any] | None) -> list[Any] | None:
        """A value of each text, such as its features, for each input."""
        return None if values is None else [values[owner] for owner in self.owners]

    def restored(self, translations: Translations) -> Translations:
        """The translations of the texts, best first, given those of the inputs."""
        rows: list[list[int]] = [[] for _ in self.texts]
        for place, owner in enumerate(self.owners):
            rows[owner].append(place)
        found = [[self._restored(place, translation) for translation in row] for place, row in enumerate(translations)]
        space = space_between(self.rules.target_language)
        return [
            found[row[0]]
            if len(row) == 1
            else [
                joined(ranked, [self.sentences[place] for place in row], text, space)
                for ranked in zip(*(found[place] for place in row), strict=True)
            ]
            for text, row in zip(self.texts, rows, strict=True)
        ]

    def _restored(self, place: int, translation: Translation) -> Translation:
        sentence, read = self.sentences[place], self.inputs[place]
        if not (self.kept and self.rules.reserved and has_reserved(read + translation.text)):
            return translation
        words = [sentence[start:end] for start, end in self.kept.spans(sentence)]
        text, is_whole, counts = restore_words(translation.text, read, words)
        if is_whole:
            return replace(spread(translation, counts, restore_words(read, read, words)[2]), text=text)
        confidence = translation.confidence and min(translation.confidence, DOUBTFUL / 2)
        return replace(translation, text=text, weights=None, confidence=confidence, lost_words=True)
