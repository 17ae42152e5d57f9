"""Translates lines for `scratch translate`, and writes each as soon as it is done, to a file or standard output."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from tqdm.auto import tqdm

from ..alignments import Aligner, pharaoh
from ..ensemble import first_member
from ..errors import UserError, as_user_error
from ..files import one_line, written_whole
from ..pipelines import CommandPipeline
from .text_input import CUT, CUT_ADVICE, LineReader, TextInput

_ALIGNED_AT_ONCE = 64  # sentences


def with_alignments(
    results: Iterable[list[dict[str, Any]]], sentences: Iterable[str], aligner: Aligner
) -> Iterator[list[dict[str, Any]]]:
    """Add an "alignment" to each of the pipeline's translations, reading ahead to align them in batches."""
    pairs = zip(sentences, results, strict=True)
    while ahead := list(islice(pairs, _ALIGNED_AT_ONCE)):
        translations = [(source, each) for source, several in ahead for each in several]
        links = aligner.align(
            [source for source, _ in translations], [each["translation_text"] for _, each in translations]
        )
        for (_, translation), found in zip(translations, links, strict=True):
            translation["alignment"] = found
        yield from (several for _, several in ahead)


def write_rows(translations: list[dict[str, Any]], number: int, n_best: bool, scores: bool) -> Iterator[str]:
    """
    The rows written for a line, without line feeds: its translation, or its n best. `translate.main` documents the
    columns; the "alignment" of a translation, if any, is the last.
    """
    for rank, translation in enumerate(translations, start=1):
        columns = [number, rank] if n_best else []
        columns += [f"{translation['score']:.4f}"] if n_best or scores else []
        columns.append(one_line(translation["translation_text"]))
        columns += [pharaoh(translation["alignment"])] if "alignment" in translation else []
        yield "\t".join(map(str, columns))


@contextmanager
def opened_output(path: Path | None) -> Iterator[TextIO]:
    """
    Open the output before anything is translated: standard output, a device or named pipe, or a file. A file appears
    only when it is complete, with the permissions of the one it replaces.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed; give a file with --output")
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # whatever the locale
        yield sys.stdout
        sys.stdout.flush()
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"--output {path}: it must be a file, in a folder that exists")
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    path = path.resolve()  # writes to the target of a symbolic link, and keeps the link
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(written_whole(path, only_writer=False))
        except OSError as error:
            raise UserError(f"--output {path}: nothing can be written to {path.parent} ({error.strerror})") from error
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file


def pipeline_options(
    pipeline: CommandPipeline, settings: dict[str, Any], n_best: int | None, scores: bool
) -> dict[str, Any]:
    """
    The pipeline's arguments: the settings that are not None, and what n-best lists and scores need. UserError if there
    are fewer beams than `n_best`.
    """
    options = {name: value for name, value in settings.items() if value is not None}
    if n_best is not None:
        beams = options.get("num_beams") or max(n_best, pipeline.model.generation_config.num_beams or 1)
        if n_best > beams:
            raise UserError(f"--n-best {n_best}: --num-beams is {beams}; it must be at least as large")
        options["num_beams"] = beams
    return options | {"num_return_sequences": n_best or 1, "return_scores": scores or n_best is not None}


def make_aligner(pipeline: CommandPipeline) -> Aligner:
    with as_user_error(kinds=ValueError):  # for alignment_heads that the model does not have
        return Aligner(first_member(pipeline.model), pipeline.tokenizer, pipeline.target_tokenizer)


def languages_of(pipeline: CommandPipeline, format: str, language: str | None) -> tuple[str, str | None]:
    """The source language (default: the tokenizer's) and the target language. UserError if the source is unknown."""
    named = pipeline.tokenizer.init_kwargs
    source = language or named.get("source_lang")
    if source is None:
        raise UserError(
            f"--format {format}: the model does not say what it translates from; add --language, such as en"
        )
    return source, named.get("target_lang")


@as_user_error(kinds=ValueError)
def translate_lines(
    path: Path | None,
    pipeline: CommandPipeline,
    options: dict[str, Any],
    rows: Callable[..., Iterator[str]],
    file: TextIO,
    keep_going: bool,
    quiet: bool,
    aligner: Aligner | None,
) -> None:
    """
    Translate the lines of a file, or of standard input as they arrive.

    Args:
        path: a file; None: standard input.
        options: passed to the pipeline.
        rows: formats a line's translations, given its number, as rows.
        keep_going: see `LineReader`.
        quiet: show no progress bar and no prompt.
        aligner: aligns each line with its translations; None: nothing is aligned.

    Raises:
        UserError: a line cannot be translated. In a file, this is found before anything is translated.
    """
    text = TextInput(path)
    reader = LineReader(pipeline, text.name, keep_going)
    if text.total is not None and not keep_going:
        reader.check(text)
    prompt = text.is_terminal and sys.stderr.isatty() and not quiet
    if prompt:
        print("A line at a time; Ctrl-D ends.", file=sys.stderr)
    number = 0
    with tqdm(total=text.total, unit=" lines", disable=quiet or prompt or None) as bar:  # None: shown on a terminal
        for lines in text.windows(lambda: print("> ", end="", file=sys.stderr, flush=True) if prompt else None):
            sentences, error = reader.read(lines, number)
            results = pipeline(iter(sentences), **options)
            if aligner is not None:
                results = with_alignments(results, sentences, aligner)
            for translations in results:
                number += 1
                if translations[0].get("cut"):
                    reader.remarks.add(CUT, number, CUT_ADVICE)
                for row in rows(translations, number):
                    if file.isatty():
                        bar.clear()
                    print(row, file=file)
                bar.update()
            file.flush()
            if error is not None:
                raise error
    reader.remarks.close()
