"""Cut text into sentences by the rules of its language, and put their translations in their places."""

from collections.abc import Sequence
from dataclasses import dataclass

# Languages, by ISO 639, that put no space between sentences.
_WITHOUT_SPACES = {"bo", "ja", "km", "lo", "my", "th", "yue", "zh"}


@dataclass(frozen=True)
class Piece:
    """A sentence, and the white space around it; the sentence is empty where there is white space alone."""

    before: str
    sentence: str
    after: str


def cut(text: str, language: str) -> list[Piece]:
    """
    The sentences of a text of any length, with all its white space.

    Args:
        language: an ISO 639 code; sentencex has rules for some 240 languages, and general ones for others.
    """
    from sentencex import segment  # from an extra of this package

    pieces = []
    for part in segment(language, text):
        sentence = part.strip()
        before, _, after = part.partition(sentence) if sentence else (part, "", "")
        pieces.append(Piece(before, sentence, after))
    return pieces


def join(pieces: Sequence[Piece], translations: Sequence[str], language: str) -> str:
    """
    The text of which the pieces are, with translations in the place of its sentences. Between sentences on one line
    there is a space where the target language has one.

    Args:
        translations: one for each piece.
        language: the target's code.
    """
    spaceless, written = language.split("-")[0].split("_")[0].lower() in _WITHOUT_SPACES, []
    for place, (piece, translation) in enumerate(zip(pieces, translations, strict=True)):
        after = piece.after
        if piece.sentence and place + 1 < len(pieces):
            if not after and not pieces[place + 1].before:
                after = "" if spaceless else " "
            elif after == " ":
                after = "" if spaceless else after
        written.append(piece.before + translation + after)
    return "".join(written)
