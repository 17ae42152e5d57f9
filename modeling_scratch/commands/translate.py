"""`scratch translate`: text in, text out, as in `scratch translate FOLDER_OR_NAME < source.txt > target.txt`."""

import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer
from tqdm.auto import tqdm

from ..alignments import Aligner, pharaoh
from ..cli import log_to_terminal, one_line_errors
from ..documents import FORMATS, WITH_INLINE_MARKUP
from ..ensemble import first_member
from ..errors import UserError, as_user_error
from ..files import one_line, written_whole
from ..model.batched_generation import DEFAULT_BATCH_TOKENS
from ..model.translation_pipeline import ScratchTranslationPipeline
from ..pipelines import load_pipeline
from .document_input import ENDINGS, SentenceTranslator, translated_document
from .text_input import CUT, CUT_ADVICE, LineReader, TextInput

logger = logging.getLogger(__name__)

_ALIGNED_AT_ONCE = 64  # sentences
BROKEN_PIPE = 141  # the exit code that shells report for SIGPIPE


def with_alignments(
    results: Iterable[list[dict[str, Any]]], sentences: Iterable[str], aligner: Aligner
) -> Iterator[list[dict[str, Any]]]:
    """The pipeline's results with the "alignment" of each translation, read ahead to align many at once."""
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
    What is written for the line with this number, without line feeds: its translation, or each of its n best; see
    `main`. Those of translations with an "alignment" end with it.
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
    path = path.resolve()  # keeps a link and writes to its target
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(written_whole(path, locked=False))
        except OSError as error:
            raise UserError(f"--output {path}: nothing can be written to {path.parent} ({error.strerror})") from error
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file


@contextmanager
def quiet_broken_pipe() -> Iterator[None]:
    """Exit with BROKEN_PIPE and without a message when the reader of the output has gone away."""
    try:
        yield
    except BrokenPipeError:
        # Python flushes standard output at exit, which must not fail again.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)


def beams_for(n_best: int, num_beams: int | None, pipeline: ScratchTranslationPipeline) -> int:
    """The beam width for an n-best list, at least the model's. UserError if the one given is too small."""
    beams = num_beams or max(n_best, pipeline.model.generation_config.num_beams or 1)
    if n_best > beams:
        raise UserError(f"--n-best {n_best}: --num-beams is {beams}; it must be at least as large")
    return beams


_Output = Annotated[
    str | None, typer.Option(help="a file, which appears when complete, or a device; default: standard output")
]
_NBest = Annotated[int | None, typer.Option(min=1, help="write the N best of each line, as LINE, RANK, SCORE and TEXT")]
_Format = Annotated[
    Literal["lines", *FORMATS] | None,
    typer.Option(help="lines of a sentence each, the default; or a document, whose structure stays"),
]


def main(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    others: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="more models, to translate together with it")
    ] = None,
    input: Annotated[str | None, typer.Option(help="a text file; default: standard input")] = None,
    output: _Output = None,
    num_beams: Annotated[int | None, typer.Option(min=1, help="default: as the model was saved")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="default: as the model was saved")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="default: as the model was saved")] = None,
    n_best: _NBest = None,
    scores: Annotated[bool, typer.Option("--scores", help="write SCORE and a tab before each translation")] = False,
    alignments: Annotated[bool, typer.Option("--alignments", help="write a tab and word links after each")] = False,
    batch_tokens: Annotated[int, typer.Option(min=1, help="padded source tokens per batch")] = DEFAULT_BATCH_TOKENS,
    batch_size: Annotated[int | None, typer.Option(min=1, help="lines per batch, instead of --batch-tokens")] = None,
    revision: Annotated[str | None, typer.Option(help="a branch, tag or commit of a Hub repository")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="leave lines empty that cannot be translated, with a warning")
    ] = False,
    format: _Format = None,
    language: Annotated[str | None, typer.Option(help="of a document, such as en (default: as the model says)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar and no prompt")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """
    Translate text line by line: one line out for each line in, empty lines included, as soon as it is there: lines that
    wait are translated together.

    With --n-best N, N rows are written for each line, best first: line number and rank, both from 1, score and text,
    separated by tabs. Rows for an empty line have no text. A score is the natural logarithm of the translation's
    probability under the model, the end token included; beam search ranks by score / tokens^length_penalty. With
    --alignments, each row ends with a tab and the links of its words, SOURCE-TARGET, both from 0: 0-0 1-2 2-1.

    Models with the same tokenizers translate as an ensemble, by the mean of their probabilities. The first one aligns.

    Nothing is truncated: a line with too many tokens for the model is an error, in a file before anything is
    translated; with --keep-going it is left empty. A translation that reaches its greatest length is a warning.

    A document (--format) is translated whole, sentence by sentence, and all else in it stays. With --keep-going, so
    does a sentence that cannot be translated.
    """
    log_to_terminal(logging.INFO)
    with one_line_errors(debug), quiet_broken_pipe():
        _check_options(input, output, length_penalty, format, scores or n_best is not None or alignments, language)
        with opened_output(None if output is None else Path(output)) as file:
            pipeline = load_pipeline([model, *(others or [])], revision)
            path, name = None if input is None else Path(input), input or "standard input"
            settings = {"num_beams": num_beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
            settings |= {"batch_size": batch_size, "batch_tokens": batch_tokens}
            options = _options(pipeline, settings, n_best, scores)
            aligner = _aligner(pipeline) if alignments or format in WITH_INLINE_MARKUP else None
            if format in FORMATS:
                languages = _languages(pipeline, format, language)
                translate = SentenceTranslator(pipeline, aligner, options, name, keep_going, _is_seen(quiet))
                file.write(translated_document(path, format, languages, translate))
            else:
                rows = partial(write_rows, n_best=n_best is not None, scores=scores)
                reader = LineReader(pipeline, name, keep_going)
                with as_user_error():
                    translate_text(TextInput(path), reader, options, rows, file, quiet, aligner)


def _check_options(
    input: str | None,
    output: str | None,
    length_penalty: float | None,
    format: str | None,
    has_columns: bool,
    language: str | None,
) -> None:
    """UserError for options that are wrong, or do not go together."""
    if "" in (input, output):
        raise UserError("--input and --output take the name of a file, not an empty one")
    if length_penalty is not None and not math.isfinite(length_penalty):
        raise UserError(f"--length-penalty {length_penalty}: it must be a number")
    if format in FORMATS and has_columns:
        raise UserError(
            f"--format {format}: scores, n-best lists and alignments are of lines; leave --scores, --n-best and "
            "--alignments out"
        )
    if language is not None and format not in FORMATS:
        raise UserError("--language is for documents: add --format, such as --format text")
    if format is None and input is not None and (kind := ENDINGS.get(Path(input).suffix.lower())):
        logger.warning(f"{input} is translated line by line; to keep its structure, add --format {kind}")


def _options(
    pipeline: ScratchTranslationPipeline, settings: dict[str, Any], n_best: int | None, scores: bool
) -> dict[str, Any]:
    """The pipeline's arguments, from the settings that were given."""
    options = {name: value for name, value in settings.items() if value is not None}
    if n_best is not None:
        options |= {"num_beams": beams_for(n_best, options.get("num_beams"), pipeline), "num_return_sequences": n_best}
    return options | {"return_scores": scores or n_best is not None}


def _aligner(pipeline: ScratchTranslationPipeline) -> Aligner:
    with as_user_error():  # of alignment_heads that the model does not have
        return Aligner(first_member(pipeline.model), pipeline.tokenizer, pipeline.target_tokenizer)


def _languages(pipeline: ScratchTranslationPipeline, format: str, language: str | None) -> tuple[str, str]:
    """The languages of source and target, as the model's tokenizer names them. UserError if the source's is unknown."""
    named = pipeline.tokenizer.init_kwargs
    source = language or named.get("source_lang")
    if source is None:
        raise UserError(
            f"--format {format}: the model does not say what it translates from; add --language, such as en"
        )
    return source, named.get("target_lang") or ""


def _is_seen(quiet: bool) -> bool:
    """Whether someone sees a progress bar."""
    return sys.stderr is not None and sys.stderr.isatty() and not quiet


def translate_text(
    text: TextInput,
    reader: LineReader,
    options: dict[str, Any],
    rows: Callable[..., Iterator[str]],
    file: TextIO,
    quiet: bool,
    aligner: Aligner | None = None,
) -> None:
    """
    Translate what waits, write it, and wait for more.

    Args:
        options: of the pipeline.
        rows: makes rows of a line's translations and its number.
        aligner: aligns each line with its translations; None: nothing is aligned.

    Raises:
        UserError: a line cannot be translated. Where all lines are there from the start, nothing has been translated.
    """
    if text.total is not None and not reader.keep_going:
        reader.check(text)
    is_seen = _is_seen(quiet)
    prompt = text.is_terminal and is_seen
    if prompt:
        print("A line at a time; Ctrl-D ends.", file=sys.stderr)
    number = 0
    with tqdm(total=text.total, unit=" lines", disable=not is_seen or prompt) as bar:
        for lines in text.windows(lambda: print("> ", end="", file=sys.stderr, flush=True) if prompt else None):
            sentences, error = reader.read(lines, number)
            results = reader.pipeline(iter(sentences), **options)
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
