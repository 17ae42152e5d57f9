"""`scratch translate`: text in, text out, as in `scratch translate FOLDER_OR_NAME < source.txt > target.txt`."""

import logging
import math
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import torch
import typer
from tqdm.auto import tqdm
from transformers.utils.hub import resolve_revision

from ..cli import log_to_terminal, one_line_errors
from ..ensemble import check_is_scratch, load_together
from ..errors import UserError, as_user_error
from ..loading import best_device
from ..model.batched_generation import DEFAULT_BATCH_TOKENS, SourceTooLong
from ..model.translation_pipeline import ScratchTranslationPipeline
from .text_input import TextInput, decode

logger = logging.getLogger(__name__)

BROKEN_PIPE = 141  # the exit code that shells report for SIGPIPE
_TOLD = 3  # warnings of a kind


def load_pipeline(names: list[str], revision: str | None = None) -> ScratchTranslationPipeline:
    """
    The pipeline for a model folder or Hub name, or for an ensemble of several, on the accelerator if there is one. All
    files of a repository are from one commit.

    Raises:
        UserError: one cannot be loaded, or is another kind of model; they do not go together; or a revision is given
            for a folder or for several models.
    """
    if revision is not None and len(names) > 1:
        raise UserError(f"--revision {revision}: it goes with one model, and {len(names)} are given")
    if revision is not None and Path(names[0]).is_dir():
        raise UserError(f"--revision {revision}: {names[0]} is a folder; only a repository on the Hub has revisions")
    revisions = [resolve_revision(name, revision) for name in names]
    for name, commit in zip(names, revisions, strict=True):
        check_is_scratch(name, revision=commit)
    model, source, target = load_together(names, revisions)
    return Watched(model=model, tokenizer=source, target_tokenizer=target, device=best_device())


class Watched(ScratchTranslationPipeline):
    """Says of each translation whether it was cut at the greatest length."""

    def postprocess(self, outputs: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """As inherited, with "cut" in each translation."""
        results, sequences = super().postprocess(outputs), outputs["sequences"]
        ends = self.model.generation_config.eos_token_id
        ended = torch.isin(sequences, torch.tensor(ends, device=sequences.device)).any(dim=-1)  # (batch_size, several)
        for translations, whole in zip(results, ended.tolist(), strict=True):
            for translation, is_whole in zip(translations, whole, strict=True):
                translation["cut"] = not is_whole
        return results


class Remarks:
    """Warnings about lines: the first few of each kind at once, the number of all at the end."""

    def __init__(self):
        self.lines: dict[str, list[int]] = {}

    def add(self, kind: str, number: int, what: str) -> None:
        """Say something of a line."""
        told = self.lines.setdefault(kind, [])
        told.append(number)
        if len(told) <= _TOLD:
            logger.warning(what)

    def close(self) -> None:
        """Say how many there were of each kind, if not all were said."""
        for kind, told in self.lines.items():
            if len(told) > _TOLD:
                logger.warning(f"{len(told):,} lines {kind}, the last of them line {told[-1]}")


class LineReader:
    """
    Makes texts of lines that the model can translate.

    Args:
        keep_going: leave a line empty that cannot be translated, with a warning; otherwise it is an error.
    """

    def __init__(self, pipeline: ScratchTranslationPipeline, name: str, keep_going: bool, remarks: Remarks):
        self.pipeline, self.name, self.keep_going, self.remarks = pipeline, name, keep_going, remarks

    def read(self, lines: list[bytes], first: int) -> tuple[list[str], UserError | None]:
        """
        The texts of some lines; and, unless it keeps going, the error of the first that cannot be translated, with the
        texts of those before it.

        Args:
            first: the number of lines before these.
        """
        texts: list[str] = []
        for number, line in enumerate(lines, start=first + 1):
            try:
                texts.append(decode(line, number))
            except UserError as error:
                if not self.keep_going:
                    return self._fitting(texts, first, UserError(f"{self.name}, {error}"))
                self._skip(texts, number, str(error))
        return self._fitting(texts, first, None)

    def _fitting(self, texts: list[str], first: int, error: UserError | None) -> tuple[list[str], UserError | None]:
        while True:
            try:
                self.pipeline.preprocess(texts, first)
            except SourceTooLong as too_long:
                place, number = too_long.index - first, too_long.index + 1
                what = f"line {number}: {too_long.length} tokens, but the model takes {too_long.limit}"
                if not self.keep_going:
                    return texts[:place], UserError(f"{self.name}, {what}")
                rest = texts[place + 1 :]
                del texts[place:]
                self._skip(texts, number, what)
                texts += rest
                continue
            return texts, error

    def _skip(self, texts: list[str], number: int, what: str) -> None:
        texts.append("")
        self.remarks.add("could not be translated and are empty", number, f"{what}; left empty")


def write_rows(results: Iterable[list[dict[str, Any]]], n_best: bool, scores: bool, first: int = 0) -> Iterator[str]:
    """
    Output lines without their line feed: one per source line, or one for each of its n best; see `main`.

    Args:
        first: the number of source lines before these.
    """
    for number, translations in enumerate(results, start=first + 1):
        for rank, translation in enumerate(translations, start=1):
            text = translation["translation_text"].replace("\r", " ").replace("\n", " ")
            columns = [number, rank] if n_best else []
            columns += [f"{translation['score']:.4f}"] if n_best or scores else []
            yield "\t".join(map(str, [*columns, text]))


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


def main(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    others: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="more models, to translate together with it")
    ] = None,
    input: Annotated[str | None, typer.Option(help="a text file; default: standard input")] = None,
    output: Annotated[
        str | None, typer.Option(help="a file, which appears when complete, or a device; default: standard output")
    ] = None,
    num_beams: Annotated[int | None, typer.Option(min=1, help="default: as the model was saved")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="default: as the model was saved")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="default: as the model was saved")] = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="write the N best of each line, as LINE, RANK, SCORE and TEXT")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="write SCORE and a tab before each translation")] = False,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="source tokens per batch, padding included")
    ] = DEFAULT_BATCH_TOKENS,
    batch_size: Annotated[int | None, typer.Option(min=1, help="lines per batch, instead of --batch-tokens")] = None,
    revision: Annotated[str | None, typer.Option(help="a branch, tag or commit of a Hub repository")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="leave lines empty that cannot be translated, with a warning")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar and no prompt")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """
    Translate text line by line: one line out for each line in, empty lines included, as soon as it is there: lines that
    wait are translated together.

    With --n-best N, N rows are written for each line, best first: line number and rank, both from 1, score and text,
    separated by tabs. Rows for an empty line have no text. A score is the natural logarithm of the translation's
    probability under the model, the end token included; beam search ranks by score / tokens^length_penalty.

    Several models with the same tokenizers translate as an ensemble: the mean of their probabilities decides. Beams and
    lengths are by default as the first was saved.

    Nothing is truncated: a line with too many tokens for the model is an error, in a file before anything is
    translated; with --keep-going it is left empty. A translation that reaches its greatest length is a warning.
    """
    log_to_terminal(logging.INFO)
    with one_line_errors(debug), quiet_broken_pipe():
        if "" in (input, output):
            raise UserError("--input and --output take the name of a file, not an empty one")
        if length_penalty is not None and not math.isfinite(length_penalty):
            raise UserError(f"--length-penalty {length_penalty}: it must be a number")
        with opened_output(None if output is None else Path(output)) as file:
            pipeline = load_pipeline([model, *(others or [])], revision)
            text = TextInput(None if input is None else Path(input))
            if n_best is not None:
                num_beams = beams_for(n_best, num_beams, pipeline)
            options = {"num_beams": num_beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
            options |= {"num_return_sequences": n_best, "batch_size": batch_size, "batch_tokens": batch_tokens}
            options = {name: value for name, value in options.items() if value is not None}
            options["return_scores"] = scores or n_best is not None
            writer = partial(write_rows, n_best=n_best is not None, scores=scores)
            with as_user_error():
                translate_text(text, pipeline, options, writer, file, keep_going, quiet)


def translate_text(
    text: TextInput,
    pipeline: ScratchTranslationPipeline,
    options: dict[str, Any],
    writer: Callable[..., Iterator[str]],
    file: TextIO,
    keep_going: bool,
    quiet: bool,
) -> None:
    """
    Translate what waits, write it, and wait for more.

    Args:
        options: of the pipeline.
        writer: makes rows of results, and of the number of lines before them.

    Raises:
        UserError: a line cannot be translated. Where all lines are there from the start, nothing has been translated.
    """
    remarks = Remarks()
    reader = LineReader(pipeline, text.name, keep_going, remarks)
    if text.total is not None and not keep_going:
        _check(reader, text)
    is_seen = sys.stderr is not None and sys.stderr.isatty() and not quiet
    prompt = text.is_terminal and is_seen
    if prompt:
        print("A sentence a line; Ctrl-D ends.", file=sys.stderr)
    first = 0
    with tqdm(total=text.total, unit=" lines", disable=not is_seen or prompt) as bar:
        for lines in text.windows(lambda: print("> ", end="", file=sys.stderr, flush=True) if prompt else None):
            texts, error = reader.read(lines, first)
            results = pipeline(iter(texts), progress=bar.update, **options)
            for number, translations in enumerate(results, start=first + 1):
                if translations[0].get("cut"):
                    what = f"line {number}: the translation was cut at its greatest length (--max-new-tokens)"
                    remarks.add("were cut at the greatest length", number, what)
                for row in writer([translations], first=number - 1):
                    if file.isatty():
                        bar.clear()
                    print(row, file=file)
            file.flush()
            if error is not None:
                raise error
            first += len(lines)
    remarks.close()


def _check(reader: LineReader, text: TextInput) -> None:
    """UserError for the first line that cannot be translated. The tokens of 100,000 lines would fill a gigabyte."""
    first = 0
    for lines in text.windows():
        if (error := reader.read(lines, first)[1]) is not None:
            raise error
        first += len(lines)
