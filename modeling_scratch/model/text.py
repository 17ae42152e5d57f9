"""What models read of a source text, if anything, and which outputs say nothing. This file needs no PyTorch."""

import re
from typing import Any

# Characters that show nothing and mean nothing to a translator, but would make other words of those that they stand in:
# soft hyphens; zero-width spaces and joiners of words (U+200B, U+2060, U+FEFF); marks of direction (U+061C, U+200E,
# U+200F, U+202A to U+202E, U+2066 to U+2069); operators of mathematics and deprecated controls (the rest of U+2060 to
# U+206F). U+200C and U+200D stay, since they change how letters and emoji look. The pattern means the same to Python,
# to the tokenizers library and to JavaScript.
INVISIBLE = re.compile(r"[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")

# Ends each feature in a source. To `clean` it is white space, so neither a text nor a feature can contain it.
SEPARATOR = "\u001f"


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
