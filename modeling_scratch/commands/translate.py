"""Text in, text out: python -m modeling_scratch.translate FOLDER_OR_NAME < source.txt > target.txt"""

import logging
import math
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from tqdm.auto import tqdm
from transformers.utils.hub import resolve_revision

from ..cli import log_to_terminal, one_line_errors
from ..errors import UserError
from ..loading import best_device, load_config, load_tokenizers, load_translator
from ..model.batched_generation import DEFAULT_BATCH_TOKENS, SourceTooLong
from ..model.configuration_scratch import ScratchConfig
from ..model.translation_pipeline import SENTENCES_AHEAD, ScratchTranslationPipeline

BROKEN_PIPE = 141  # as shells say of SIGPIPE


def read_lines(path: Path | None) -> list[str]:
    """
    The lines of a UTF-8 file, or of standard input, without the white space around them. Only a line feed ends a line.

    Raises:
        UserError: not UTF-8; the message names the line. Or standard input is closed.
    """
    if path is None and sys.stdin is None:
        raise UserError("standard input is closed; give a file by --input")
    lines = (sys.stdin.buffer.read() if path is None else path.read_bytes()).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    decoded = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(line.decode("utf-8-sig" if number == 1 else "utf-8").strip())
        except UnicodeDecodeError as error:
            raise UserError(f"{_name(path)}, line {number}: not valid UTF-8 ({error.reason})") from None
    return decoded


def _name(path: Path | None) -> str:
    return "standard input" if path is None else str(path)


def load_pipeline(name: str, revision: str | None) -> ScratchTranslationPipeline:
    """
    The pipeline of a model folder or Hub name, on the accelerator, if there is one, all of one commit.

    Raises:
        UserError: it cannot be loaded, or is another kind of model; a folder has no revisions.
    """
    if revision is not None and Path(name).is_dir():
        raise UserError(f"--revision {revision}: {name} is a folder; only a repository on the Hub has revisions")
    revision = resolve_revision(name, revision)
    config = load_config(name, revision=revision)
    if config.model_type != ScratchConfig.model_type:
        raise UserError(f"{name} is a {config.model_type} model; this takes a {ScratchConfig.model_type} model")
    source, target = load_tokenizers(name, revision=revision)
    return ScratchTranslationPipeline(
        model=load_translator(name, revision=revision),
        tokenizer=source,
        target_tokenizer=target,
        device=best_device(),
    )


def check_lengths(pipeline: ScratchTranslationPipeline, lines: list[str], name: str) -> None:
    """UserError that names the first line with more tokens than the model takes."""
    for first in range(0, len(lines), SENTENCES_AHEAD):  # what 100,000 lines have of tokens fills a gigabyte
        try:
            pipeline.preprocess(lines[first : first + SENTENCES_AHEAD], first)
        except SourceTooLong as error:
            raise UserError(
                f"{name}, line {error.index + 1}: {error.length} tokens, but the model takes {error.limit}"
            ) from None


def write_rows(results: Iterable[list[dict[str, Any]]], n_best: bool, scores: bool) -> Iterator[str]:
    """A line, or one for each of a source's n best, without a line end; see `main`."""
    for number, translations in enumerate(results, start=1):
        for rank, translation in enumerate(translations, start=1):
            text = translation["translation_text"].replace("\r", " ").replace("\n", " ")
            columns = [number, rank] if n_best else []
            columns += [f"{translation['score']:.4f}"] if n_best or scores else []
            yield "\t".join(map(str, [*columns, text]))


@contextmanager
def opened_output(path: Path | None) -> Iterator[TextIO]:
    """
    Where to write, opened at once, so that nothing is translated in vain: standard output; a device or a named pipe; or
    a file that takes its name, and the permissions of the one before, when it is complete.
    """
    if path is None:
        if sys.stdout is None:
            raise UserError("standard output is closed; give a file by --output")
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # whatever the locale: text in, text out
        yield sys.stdout
        sys.stdout.flush()
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"--output {path}: it must be a file, in a folder that exists")
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    path = path.resolve()  # a link stays, and what it points to is written
    temporary = path.with_name(f".translate-{secrets.token_hex(4)}.tmp")
    try:
        file = temporary.open("x", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"--output {path}: nothing can be written to {path.parent} ({error.strerror})") from error
    try:
        with file:
            if path.exists():
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def main(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    input: Annotated[str | None, typer.Option(help="a text file; default: standard input")] = None,
    output: Annotated[
        str | None, typer.Option(help="a file, there when complete, or a device; default: standard output")
    ] = None,
    num_beams: Annotated[int | None, typer.Option(min=1, help="default: as the model was saved")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="default: as the model was saved")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="default: as the model was saved")] = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="the N best of each line, as rows of LINE, RANK, SCORE and TEXT")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="SCORE and a tab before each translation")] = False,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="source tokens translated at once, padding included")
    ] = DEFAULT_BATCH_TOKENS,
    batch_size: Annotated[int | None, typer.Option(min=1, help="lines translated at once, instead")] = None,
    revision: Annotated[str | None, typer.Option(help="of a Hub name: a branch, tag or commit")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """
    Translate a text line by line: one line out for each line in, empty lines too.

    With --n-best N there are N rows for each line, the best first: the line's number from 1, the rank from 1, the score
    and the text, tabs between them; those of an empty line have no text. A score is the natural logarithm of the
    probability that the model gives to the translation, its end included; beam search ranks by
    score / tokens^length_penalty.

    A line with more tokens than the model takes is reported before anything is translated, and nothing is cut.
    """
    log_to_terminal(logging.INFO)
    with one_line_errors(debug):
        try:
            if "" in (input, output):
                raise UserError("--input and --output take the name of a file, not an empty one")
            if length_penalty is not None and not math.isfinite(length_penalty):
                raise UserError(f"--length-penalty {length_penalty}: it must be a number")
            source = None if input is None else Path(input)
            with opened_output(None if output is None else Path(output)) as file:
                pipeline = load_pipeline(model, revision)
                lines = read_lines(source)
                check_lengths(pipeline, lines, _name(source))
                options = {"num_beams": num_beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
                options |= {"num_return_sequences": n_best, "batch_size": batch_size, "batch_tokens": batch_tokens}
                options = {name: value for name, value in options.items() if value is not None}
                if n_best is not None:
                    beams = num_beams or max(n_best, pipeline.model.generation_config.num_beams or 1)
                    if n_best > beams:
                        raise UserError(f"--n-best {n_best}: --num-beams is {beams}; it must be as many at least")
                    options["num_beams"] = beams
                hidden = quiet or sys.stderr is None or not sys.stderr.isatty()
                with tqdm(total=len(lines), unit=" lines", disable=hidden) as bar:
                    results = pipeline(
                        iter(lines), return_scores=scores or n_best is not None, progress=bar.update, **options
                    )
                    for row in write_rows(results, n_best is not None, scores):
                        if file.isatty():
                            bar.clear()
                        print(row, file=file)
        except BrokenPipeError:
            # Who reads has had enough. What is buffered must go somewhere when Python ends.
            if sys.stdout is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)
