"""Translates a whole document sentence by sentence, with all its sentences in one call."""

import sys
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ..alignments import Aligner
from ..documents import translate_document
from ..errors import UserError, as_user_error, beginning
from ..files import one_line
from ..paragraphs import Translated, guessed_links, translate_paragraphs
from ..pipelines import CommandPipeline
from .text_input import CUT, CUT_ADVICE, Remarks, remark_lengths


class SentenceTranslator:
    """
    Translates sentences; the translations contain no line breaks.

    Args:
        aligner: links words of sentences and translations; None: links are guessed, so that markup stays with its
            sentence.
        options: passed to the pipeline.
        keep_going: leave a sentence that cannot be translated as it is, with a warning; otherwise it is an error.
        is_seen: show a progress bar.
    """

    def __init__(
        self,
        pipeline: CommandPipeline,
        aligner: Aligner | None,
        options: dict[str, Any],
        keep_going: bool,
        is_seen: bool,
    ):
        self.pipeline, self.aligner, self.options = pipeline, aligner, options
        self.keep_going, self.is_seen = keep_going, is_seen
        self.remarks = Remarks("sentence")

    def __call__(self, sentences: list[str]) -> list[Translated]:
        """
        The translation of each sentence, with word links.

        Raises:
            UserError: without `keep_going`, a sentence is too long for the model; nothing has been translated yet.
        """
        fitting, kept = self._fitting(sentences)
        bar = tqdm(total=len(fitting), unit=" sentences", disable=not self.is_seen)
        with bar, as_user_error():  # for invalid options
            results = self.pipeline(fitting, progress=bar.update, num_return_sequences=1, **self.options)
        texts = [one_line(result["translation_text"]) for result in results]
        links = self.aligner.align(fitting, texts) if self.aligner else map(guessed_links, fitting, texts)
        translated = [Translated(text, found) for text, found in zip(texts, links, strict=True)]
        for number, sentence in enumerate(sentences, start=1):
            if number in kept:
                translated[number - 1] = Translated(sentence, guessed_links(sentence, sentence))
            elif results[number - 1].get("cut"):
                self.remarks.add(CUT, number, CUT_ADVICE)
        self.remarks.close()
        return translated

    def _fitting(self, sentences: list[str]) -> tuple[list[str], set[int]]:
        """The sentences, with those too long for the model blanked, and the numbers of the blanked ones, from 1."""
        fitting, kept, lengths = list(sentences), set(), self.pipeline.lengths(sentences)
        for place, (sentence, length) in enumerate(zip(sentences, lengths, strict=True)):
            if length > self.pipeline.limit:
                what = f"{length} tokens, but the model takes {self.pipeline.limit} ({beginning(sentence)})"
                if not self.keep_going:
                    raise UserError(f"sentence {place + 1}: {what}")
                self.remarks.add("could not be translated and stay as they are", place + 1, f"{what}; left as it is")
                fitting[place], lengths[place] = "", 0
                kept.add(place + 1)
        remark_lengths(self.remarks, self.pipeline, lengths)
        return fitting, kept


def translated_document(
    path: Path | None, format: str, languages: tuple[str, str], translate: SentenceTranslator
) -> str:
    """
    Read a document and translate its text.

    Args:
        path: a file; None: standard input.
        format: a key of `documents.FORMATS`.
        languages: source and target language.

    Raises:
        UserError: standard input is closed, the document is not UTF-8 or not in this format, or a sentence is too
            long for the model.
    """
    if path is None and sys.stdin is None:
        raise UserError("standard input is closed; give a file with --input")
    content = sys.stdin.buffer.read() if path is None else path.read_bytes()
    name = path or "standard input"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not valid UTF-8 ({error.reason} at byte {error.start:,})") from None
    try:
        return translate_document(text, format, lambda found: translate_paragraphs(found, translate, *languages))
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
