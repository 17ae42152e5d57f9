"""Translates a document for `scratch translate --format`: all its sentences in one call."""

from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ...errors import UserError, as_user_error, beginning
from ...files import one_line
from ...inference.alignments import links_of
from ...inference.translate import Translator
from ..translate.lines import Warnings, check_lengths, whole_input
from ..translate.paragraphs import Translated, guessed_links, translate_paragraphs
from .document import translate_document


def translated_document(
    path: Path | None,
    format: str,
    languages: tuple[str | None, str | None],
    translator: Translator,
    settings: dict[str, Any],
    keep_going: bool = False,
    quiet: bool = False,
) -> str:
    """
    Read a document and translate it.

    Args:
        path: a file; None: standard input.
        format: a key of `FORMATS`.
        languages: tags of source and target, as `translate_paragraphs` takes them.
        settings: for `Translator.translate`.
        keep_going, quiet: see `translate_sentences`.

    Raises:
        UserError: the document is not UTF-8 or not in this format, or a sentence is too long for the model.
    """
    name = path or "standard input"
    try:
        text = whole_input(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not valid UTF-8 ({error.reason} at byte {error.start:,})") from None

    def translate(sentences: list[str]) -> list[Translated]:
        return translate_sentences(sentences, translator, settings, keep_going, quiet)

    try:
        return translate_document(text, format, lambda found: translate_paragraphs(found, translate, *languages))
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def translate_sentences(
    sentences: list[str], translator: Translator, settings: dict[str, Any], keep_going: bool, quiet: bool
) -> list[Translated]:
    """
    Translate sentences, with word links and without line breaks. If the settings do not ask for alignments, the links
    are guessed, so that markup stays with its sentence.

    Args:
        keep_going: leave sentences that cannot be translated unchanged, with a warning; otherwise they are an error.
        quiet: show no progress bar.

    Raises:
        UserError: without `keep_going`, a sentence is too long for the model. This is found before translating.
    """
    warnings, tokens = Warnings("sentence"), translator.tokenize(sentences)
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
        found = translator.translate(sentences, tokens, progress=bar.update, **settings)
    translated = []
    for index, (sentence, (best, *_)) in enumerate(zip(sentences, found, strict=True)):
        if best.is_cut:
            warnings.add_cut(index + 1)
        text = one_line(best.text)
        links = guessed_links(sentence, text) if best.weights is None else links_of(best.weights)
        translated.append(Translated(text, links))
    warnings.close()
    return translated
