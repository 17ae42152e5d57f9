"""Translates a document for `scratch translate --format`: all its sentences in one call."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ...errors import UserError, as_user_error, beginning
from ...inference.engine import Engine
from ...model.kept_words import ADDRESSES, KeptWords
from ..translate.lines import Warnings, check_lengths, translated_texts, whole_input
from ..translate.paragraphs import Translated, translate_paragraphs
from ..translate.placement import as_translated, read_texts
from .document import translate_document


def translated_document(
    path: Path | None,
    format: str,
    languages: tuple[str | None, str | None],
    translator: Engine,
    settings: dict[str, Any],
    keep_going: bool = False,
    quiet: bool = False,
    kept: KeptWords | None = None,
    confidence: bool = False,
) -> bytes:
    """
    Read a document and translate it.

    Args:
        path: a file; None: standard input.
        format: a key of `FORMATS`.
        languages: tags of source and target, as `translate_paragraphs` takes them.
        settings: for `Engine.translate`.
        keep_going, quiet, kept: see `translate_sentences`.
        confidence: see `read_document`.

    Raises:
        UserError: the document is not in this format, or a sentence is too long for the model.
    """

    def translate(sentences: list[str]) -> list[Translated]:
        return translate_sentences(sentences, translator, settings, keep_going, quiet, kept)

    def translate_all(paragraphs: list[str]) -> list[Translated]:
        return translate_paragraphs(paragraphs, translate, *languages, known)

    known = replace(kept, are_read=translator.rules.reserved > 0) if kept else ADDRESSES
    try:
        return translate_document(whole_input(path), format, translate_all, known, languages[1], confidence)
    except UserError as error:
        raise UserError(f"{path or 'standard input'}: {error}") from error


def translate_sentences(
    sentences: list[str],
    translator: Engine,
    settings: dict[str, Any],
    keep_going: bool,
    quiet: bool,
    kept: KeptWords | None = None,
) -> list[Translated]:
    """
    Translate sentences, with word links and without line breaks. If the settings do not ask for alignments, the links
    are guessed, so that markup stays with its sentence.

    Args:
        keep_going: leave sentences that cannot be translated unchanged, with a warning; otherwise they are an error.
        quiet: show no progress bar.
        kept: what stays as it is; None: nothing.

    Raises:
        UserError: without `keep_going`, a sentence is too long for the model. This is found before translating.
    """
    warnings, reading = Warnings("sentence"), read_texts(sentences, translator.rules, kept, "line")
    tokens = translator.tokenize(reading.inputs)
    too_long, unusual = check_lengths(translator, tokens)
    for index, problem in too_long.items():
        problem = f"{problem} ({beginning(sentences[index])})"
        if not keep_going:
            raise UserError(f"sentence {index + 1}: {problem}")
        warnings.add("{} are too long and stay as they are", index + 1, f"{problem}; left as it is")
        tokens[index] = []  # makes the translator return the sentence itself
    for index, problem in unusual.items():
        warnings.add_unusual(index + 1, problem)
    bar = tqdm(total=len(sentences), unit=" sentences", disable=quiet or None)  # None: shown on a terminal
    with bar, as_user_error(kinds=ValueError):  # for invalid settings
        found = translated_texts(translator, reading, tokens, bar.update, **settings)
    translated = []
    for index, (text, (best, *_)) in enumerate(zip(sentences, found, strict=True)):
        if best.is_cut:
            warnings.add_cut(index + 1)
        if index not in unusual:
            warnings.add_doubtful(index + 1, best)
        written = as_translated(text, best)
        translated.append(replace(written, is_doubtful=written.is_doubtful or index in too_long or index in unusual))
    warnings.close()
    return translated
