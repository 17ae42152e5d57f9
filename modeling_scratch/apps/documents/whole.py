"""Translates a whole document sentence by sentence, with all its sentences in one call."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ...errors import UserError, as_user_error, beginning
from ...files import one_line
from ...inference.alignments import Aligner
from ..translate.lines import CUT, CUT_ADVICE, UNUSUAL, Remarks, check_lengths, whole_input
from ..translate.paragraphs import Translated, guessed_links, translate_paragraphs
from ..translate.pipeline import CommandPipeline
from . import translate_document


@dataclass(frozen=True)
class SentenceTranslator:
    """
    Translates sentences; the translations contain no line breaks.

    Args:
        aligner: links words of sentences and translations; None: links are guessed, so that markup stays with its
            sentence.
        options: passed to the pipeline.
        keep_going: leave a sentence that cannot be translated as it is, with a warning; otherwise it is an error.
        quiet: show no progress bar.
    """

    pipeline: CommandPipeline
    aligner: Aligner | None
    options: dict[str, Any]
    keep_going: bool
    quiet: bool

    def __call__(self, sentences: list[str]) -> list[Translated]:
        """
        The translation of each sentence, with word links.

        Raises:
            UserError: without `keep_going`, a sentence is too long for the model; nothing has been translated yet.
        """
        remarks = Remarks("sentence")
        kept, unusual = check_lengths(self.pipeline, sentences)
        for place, what in kept.items():
            what = f"{what} ({beginning(sentences[place])})"
            if not self.keep_going:
                raise UserError(f"sentence {place + 1}: {what}")
            remarks.add("could not be translated and stay as they are", place + 1, f"{what}; left as it is")
        for place, what in unusual.items():
            remarks.add(UNUSUAL, place + 1, what)
        fitting = ["" if place in kept else sentence for place, sentence in enumerate(sentences)]
        bar = tqdm(total=len(fitting), unit=" sentences", disable=self.quiet or None)  # None: shown on a terminal
        with bar, as_user_error(kinds=ValueError):  # for invalid options
            results = self.pipeline(fitting, progress=bar.update, **self.options)
        texts = [one_line(result["translation_text"]) for result in results]
        links = self.aligner.align(fitting, texts) if self.aligner else map(guessed_links, fitting, texts)
        translated = [Translated(text, found) for text, found in zip(texts, links, strict=True)]
        for place, sentence in enumerate(sentences):
            if place in kept:
                translated[place] = Translated(sentence, guessed_links(sentence, sentence))
            elif results[place].get("cut"):
                remarks.add(CUT, place + 1, CUT_ADVICE)
        remarks.close()
        return translated


def translated_document(
    path: Path | None, format: str, languages: tuple[str, str | None], translate: SentenceTranslator
) -> str:
    """
    Read a document, from a file or standard input (None), and translate its text from one language to the other.

    Raises:
        UserError: standard input is closed, the document is not UTF-8 or not in this format, or a sentence is too
            long for the model.
    """
    content, name = whole_input(path), path or "standard input"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not valid UTF-8 ({error.reason} at byte {error.start:,})") from None
    try:
        return translate_document(text, format, lambda found: translate_paragraphs(found, translate, *languages))
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
