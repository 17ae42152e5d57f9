"""Text in, text out: python -m modeling_scratch.translate FOLDER_OR_NAME < source.txt > target.txt"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm.auto import tqdm

from .cli import log_to_terminal, one_line_errors
from .translation_pipeline import DEFAULT_BATCH_TOKENS, ScratchTranslationPipeline, SourceTooLong

BROKEN_PIPE = 141  # as shells say of SIGPIPE


def read_lines(path: Path | None) -> list[str]:
    """
    The lines of a UTF-8 file, or of standard input, without the white space around them. Only a line feed ends a line.

    Raises:
        ValueError: not UTF-8; the message names the line.
    """
    lines = (sys.stdin.buffer.read() if path is None else path.read_bytes()).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    decoded = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(line.decode("utf-8-sig" if number == 1 else "utf-8").strip())
        except UnicodeDecodeError as error:
            raise ValueError(f"{_name(path)}, line {number}: not valid UTF-8 ({error.reason})") from None
    return decoded


def _name(path: Path | None) -> str:
    return "standard input" if path is None else str(path)


def load_pipeline(name: str, revision: str | None) -> ScratchTranslationPipeline:
    """The pipeline of a model folder or Hub name, on the device that Accelerate chooses."""
    from .preparation import load_translator, make_accelerator
    from .tokenizer import load_tokenizers

    source, target = load_tokenizers(name, revision=revision)
    return ScratchTranslationPipeline(
        model=load_translator(name, revision=revision),
        tokenizer=source,
        target_tokenizer=target,
        device=make_accelerator().device,
    )


def write_rows(results: Iterable[list[dict[str, Any]]], n_best: bool, scores: bool) -> Iterator[str]:
    """A line, or one for each of a source's n best, without a line end; see `main`."""
    for number, translations in enumerate(results, start=1):
        for rank, translation in enumerate(translations, start=1):
            text = translation["translation_text"].replace("\r", " ").replace("\n", " ")
            columns = [number, rank] if n_best else []
            columns += [f"{translation['score']:.4f}"] if n_best or scores else []
            yield "\t".join(map(str, [*columns, text]))


def write_output(rows: Iterable[str], path: Path | None, bar: tqdm) -> None:
    """Write a line each: to a file that appears when it is complete, or, as they come, to standard output."""
    if path is not None:
        from .run_folder import write_whole

        write_whole(path, "".join(f"{row}\n" for row in rows))
        return
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # whatever the locale: text in, text out
    for row in rows:
        if sys.stdout.isatty():
            bar.clear()
        print(row)
    sys.stdout.flush()


def main(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    input: Annotated[Path | None, typer.Option(help="a text file; default: standard input")] = None,
    output: Annotated[Path | None, typer.Option(help="written when complete; default: standard output")] = None,
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
    and the text, tabs between them; an empty line has one row. A score is the natural logarithm of the probability that
    the model gives to the translation, its end included; beam search ranks by score / tokens^length_penalty.

    A line with more tokens than the model takes is reported before anything is translated, and nothing is cut.
    """
    log_to_terminal(logging.INFO)
    with one_line_errors(debug):
        try:
            if output is not None and (not output.parent.is_dir() or (output.exists() and not output.is_file())):
                raise ValueError(f"--output {output}: it must be a file, in a folder that exists")
            pipeline = load_pipeline(model, revision)
            lines = read_lines(input)
            try:
                pipeline.preprocess(lines)
            except SourceTooLong as error:
                raise ValueError(
                    f"{_name(input)}, line {error.index + 1}: {error.length} tokens, but the model takes {error.limit}"
                ) from None
            options = {"num_beams": num_beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
            options |= {"num_return_sequences": n_best, "batch_size": batch_size, "batch_tokens": batch_tokens}
            options = {name: value for name, value in options.items() if value is not None}
            if n_best is not None:
                beams = num_beams or max(n_best, pipeline.model.generation_config.num_beams or 1)
                if n_best > beams:
                    raise ValueError(f"--n-best {n_best}: --num-beams is {beams}; it must be as many at least")
                options["num_beams"] = beams
            with tqdm(total=len(lines), unit=" lines", disable=quiet or not sys.stderr.isatty()) as bar:
                results = pipeline(
                    iter(lines), return_scores=scores or n_best is not None, progress=bar.update, **options
                )
                write_output(write_rows(results, n_best is not None, scores), output, bar)
        except BrokenPipeError:
            # Who reads has had enough. What is buffered must go somewhere when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
