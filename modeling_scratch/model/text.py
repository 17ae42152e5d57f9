"""What models read of a source text, and which outputs say nothing. This file needs no PyTorch."""

import re

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


def with_features(text: str, features: str = "") -> str:
    """
    What models read of a source: its features, each followed by `SEPARATOR`, and the text, all as `clean` leaves them;
    nothing for a blank text.

    Args:
        features: conditions on the output, separated by semicolons, such as V;PST;3;SG.
    """
    text = clean(text)
    tags = filter(None, map(clean, features.split(";"))) if text else ()
    return "".join(f"{tag}{SEPARATOR}" for tag in tags) + text


def says_nothing(text: str, is_translation: bool) -> bool:
    """Whether an output is blank or, as a translation of words, has neither a letter nor a digit."""
    return not (any(map(str.isalnum, text)) if is_translation else text.strip())
