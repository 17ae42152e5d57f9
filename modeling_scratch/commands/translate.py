"""`scratch translate`: run a model on text, as in `scratch translate FOLDER_OR_NAME < source.txt > target.txt`."""

import logging
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..apps.documents import FORMATS, WITH_INLINE_MARKUP, format_of
from ..errors import UserError, as_user_error, shortened
from ..files import reading
from ..inference.engine import EngineName, ctranslate2_engine, option_for_ctranslate2
from ..model.kept_words import KEPT
from ..model.text import TextRules
from .cli import (
    BROKEN_PIPE,
    Debug,
    Dtype,
    check_confidence,
    hide_bars_of_transformers,
    log_to_terminal,
    one_line_errors,
)

if TYPE_CHECKING:
    from ..inference.translate import Translator

logger = logging.getLogger(__name__)

_LARGEST_PENALTY = 100  # on the length; more overflows


@contextmanager
def quiet_broken_pipe() -> Iterator[None]:
    """
    Exit with BROKEN_PIPE and without a message when the reader of the output has closed it, as in
    `scratch translate ... | head`.
    """
    try:
        yield
    except BrokenPipeError:
        sys.exit(BROKEN_PIPE)


_Others = Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="more models, for an ensemble with it")]
_Output = Annotated[
    str | None, typer.Option(help="a file, which appears when complete, or a device; -, the default: standard output")
]
_NBest = Annotated[
    int | None, typer.Option(min=1, max=1000, help="write the N best of each line, as LINE, RANK, SCORE and TEXT")
]
_BatchTokens = Annotated[int | None, typer.Option(min=1, help="padded source tokens per batch (default: 4096)")]
_Features = Annotated[
    str | None, typer.Option(help="of all lines, such as 'V;PST;3;SG', for a model that was trained with features")
]
_FeaturesColumn = Annotated[
    int | None,
    typer.Option(min=2, help="lines have columns, separated by tabs: first the text, and the features in this one"),
]
_Workers = Annotated[
    int | None,
    typer.Option(
        min=0, max=256, help="processes that share a file; 0: no extra processes (default: one per core from 16 KB on)"
    ),
]
_Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="REGEX", help="what else a translator keeps as it is, such as 'ACME \\d+'; may be repeated"),
]
_KeepGoing = Annotated[
    bool,
    typer.Option("--keep-going", help="write an empty line, with a warning, for a line that is too long or not UTF-8"),
]
_Format = Annotated[
    Literal["lines", *FORMATS] | None,
    typer.Option(help="lines of a sentence each; or a document, whose structure stays (default: as the input's name)"),
]


def main(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    others: _Others = None,
    input: Annotated[str | None, typer.Option(help="a text file; -, the default: standard input")] = None,
    output: _Output = None,
    num_beams: Annotated[int | None, typer.Option(min=1, max=1000, help="default: as the model was saved")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="default: as the model was saved")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="default: as the model was saved")] = None,
    n_best: _NBest = None,
    scores: Annotated[bool, typer.Option("--scores", help="write SCORE and a tab before each output")] = False,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="write CONFIDENCE, from 0 to 1, and a tab before each output")
    ] = False,
    alignments: Annotated[bool, typer.Option("--alignments", help="write word links after each output")] = False,
    batch_tokens: _BatchTokens = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="lines per batch, instead of --batch-tokens")] = None,
    dtype: Dtype = None,
    revision: Annotated[str | None, typer.Option(help="a branch, tag or commit of a Hub repository")] = None,
    features: _Features = None,
    features_column: _FeaturesColumn = None,
    keep: _Keep = None,
    keep_going: _KeepGoing = False,
    format: _Format = None,
    language: Annotated[str | None, typer.Option(help="of a document, such as en (default: the model's)")] = None,
    sentences: Annotated[
        Literal["line", "split"] | None,
        typer.Option(
            help="translate each line as a whole, or each of its sentences by itself (default: the model's; split, if "
            "hardly any line that it was trained on had several; and in documents)"
        ),
    ] = None,
    workers: _Workers = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="what runs the model; auto: on a CPU CTranslate2, which is faster, where it is installed and gives "
            "the same translations"
        ),
    ] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar and no prompt")] = False,
    debug: Debug = False,
) -> None:
    """
    Run a model on text, line by line: a translator translates. For each line of input, even an empty one, one line is
    written as soon as it is ready. A line without a letter or a digit stays unchanged, unless tokens are whole symbols.

    With --n-best N, up to N rows are written for each line, best first: line number and rank, both from 1, score and
    text, separated by tabs. Their texts differ; an empty line has one row, without text. A score is the natural
    logarithm of the text's probability under the model, the end token included; beam search ranks by score /
    tokens^length_penalty. With --confidence, a number from 0 to 1 follows the score. An output below 0.5 is doubtful,
    because its line is unlike what the model has learnt, or longer, or since it is too short or long for its line; the
    command warns of it in any case. A line of --format text has the confidence of its least sure sentence. With
    --alignments, each row ends with a tab and the links of its words, SOURCE-TARGET, both from 0: 0-0 1-2 2-1.

    A translator keeps placeholders such as {name} and %s, addresses, @mentions, #tags, :emoji:, versions and `code` as
    they are, and what --keep matches. Scores are those of the rest.

    Models with the same tokenizers run as an ensemble, by the mean of their probabilities; the first one aligns.

    Nothing is truncated: a line with too many tokens for the model is an error, in a file before anything is written;
    with --keep-going it is left empty. An output that reaches the maximum length is a warning.

    A document (--format, or an input such as page.html) is cut into sentences, or, if the model has no languages, into
    lines and paragraphs. Everything else in it stays; with --keep-going, so does a sentence that is too long.
    """
    log_to_terminal(uses_transformers=False)
    with one_line_errors(debug), quiet_broken_pipe():
        names = [model, *(others or [])]
        if text := next((name for name in names[1:] if Path(name).is_file()), None):
            raise UserError(f"{text} is a file, not a model; to translate it: --input {shlex.quote(text)}")
        input, output = (None if name == "-" else name for name in (input, output))
        if format is None and input is not None and features_column is None:
            advice = "; if it is text with a sentence on each line, add --format lines"
            format = format_of(input, advice, _beginning(Path(input)))
        has_columns = scores or n_best or alignments or (confidence and format != "text")
        _check_options(input, output, length_penalty, format, has_columns, language)
        _check_features(features, features_column, format, alignments)
        own = tuple(map(own_pattern, keep or ()))
        if None not in (batch_size, batch_tokens):
            raise UserError("--batch-size counts sentences, --batch-tokens their tokens; give one of them")
        if n_best is not None and num_beams is not None and n_best > num_beams:
            raise UserError(f"--n-best {n_best}: --num-beams is {num_beams}; it must be at least as large")
        if revision is not None and len(names) > 1:
            raise UserError(f"--revision {revision}: it applies to one model, but {len(names)} are given")
        if revision is not None and Path(model).is_dir():
            raise UserError(f"--revision {revision}: {model} is a folder; only a repository on the Hub has revisions")
        if option := option_for_ctranslate2(engine, dtype):
            if workers:
                raise UserError(f"--workers {workers}: only with PyTorch on the CPU, under Linux; leave it out")
            if alignments:
                raise UserError(f"--alignments: CTranslate2 provides none; leave out {option}")

        path = None if input is None else Path(input)
        if path is not None:
            _check_input(path)

        from ..apps.translate.lines import Features, is_large, opened_output, translate_lines

        aligns = alignments or format in WITH_INLINE_MARKUP
        with opened_output(None if output is None else Path(output)) as file:
            count, settings = 0, {}
            options = (revision, dtype, aligns, max_new_tokens, n_best)
            translator = None if workers else ctranslate2_engine(names, engine, *options)
            if translator is None:
                shares = bool(workers) or (workers is None and is_large(path))
                translator, count, settings = _load_in_torch(names, revision, dtype, workers, shares)
                if aligns:
                    with as_user_error(kinds=ValueError):  # for alignment_heads that the model does not have
                        _ = translator.aligner
            given = {"num_beams": num_beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
            settings |= {name: value for name, value in given.items() if value is not None}
            if batch_size is not None or batch_tokens is not None:
                settings |= {"batch_size": batch_size, "batch_tokens": batch_tokens}
            if n_best is not None:
                settings["num_beams"] = num_beams or max(n_best, translator.num_beams)
            if confidence:
                check_confidence("--confidence", names, translator.confidence)
            is_scored = scores or confidence or n_best is not None
            settings |= {"num_return_sequences": n_best or 1, "scores": is_scored or None}  # None: if there are any
            if aligns and translator.is_aligned:
                settings["align"] = n_best or 1
            rules = translator.rules
            if keep and not rules.is_translation:
                raise UserError(f"--keep {keep[0]}: it is for translators, and {model} is not one; leave it out")
            kept = replace(KEPT, patterns=own) if rules.is_translation else None
            if format in FORMATS:
                from ..apps.documents.translation import translated_document

                languages = _languages(rules, format, language)
                if sentences == "line":
                    languages = None, languages[1]
                more = (keep_going, quiet, kept, confidence)
                file.buffer.write(translated_document(path, format, languages, translator, settings, *more))
            else:
                columns, size = (n_best is not None, scores, alignments), max(1, 2 * count)
                conditions = Features(features or "", features_column)
                more = (keep_going, quiet, size, conditions, confidence, kept, sentences)
                translate_lines(path, file, translator, settings, *columns, *more)


def own_pattern(pattern: str) -> re.Pattern[str]:
    """A regular expression for `KeptWords`. Raises UserError if it is empty or not valid."""
    if not pattern:
        raise UserError("--keep takes a regular expression, not an empty one")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"--keep {shortened(pattern, 40)}: not a regular expression: {error}") from None


def _beginning(path: Path) -> bytes:
    """The first bytes of a file; none if they can be read only once (a pipe) or not at all (see `_check_input`)."""
    try:
        with path.open("rb") if path.is_file() else BytesIO() as file:
            return file.read(8)
    except (OSError, ValueError):
        return b""


def _check_input(path: Path) -> None:
    """Raise UserError for an input that is missing or a folder, before the model is loaded."""
    with reading(path):
        if S_ISDIR(path.stat().st_mode):
            raise UserError(f"--input {path}: this is a folder; name a file")


def _load_in_torch(
    names: list[str], revision: str | None, dtype: str | None, workers: int | None, shares: bool
) -> tuple["Translator", int, dict[str, Any]]:
    """
    The model, or an ensemble, in PyTorch; the number of workers; and settings with which they share texts.

    Args:
        workers: as asked for; None: the default.
        shares: there are to be workers.
    """
    from ..inference.translate import Translator

    hide_bars_of_transformers()
    if not shares:
        return Translator.load(names, revision, dtype), 0, {}
    from ..apps.translate.workers import Pool, before_forking, worker_count

    with before_forking() as cores:
        translator = Translator.load(names, revision, dtype)
        count = worker_count(workers, translator.can_fork, cores)
        return translator, count, Pool([translator], count, cores).sharing(translator)


def _languages(rules: TextRules, format: str, language: str | None) -> tuple[str | None, str | None]:
    """The source language (default: the model's) and the target's. Raises UserError if a translator's is unknown."""
    source = language or rules.source_language or None
    if source is None and rules.is_translation:
        raise UserError(f"--format {format}: the model does not name its source language; add --language, such as en")
    return source, rules.target_language or None


def _check_features(features: str | None, column: int | None, format: str | None, alignments: bool) -> None:
    """Raise UserError for options that do not go with features."""
    if features is None and column is None:
        return
    name = "--features" if column is None else "--features-column"
    if None not in (features, column):
        raise UserError("--features is for all lines, --features-column for each line; give one of them")
    if format in FORMATS:
        raise UserError(f"{name} is for lines; leave out --format {format}")
    if alignments:
        raise UserError(f"{name}: --alignments link the words of a text alone; leave one of them out")


def _check_options(
    input: str | None,
    output: str | None,
    length_penalty: float | None,
    format: str | None,
    has_columns: bool | int | None,
    language: str | None,
) -> None:
    """Raise UserError for options that are invalid or incompatible."""
    if "" in (input, output):
        raise UserError("--input and --output take the name of a file, not an empty one")
    if length_penalty is not None and not abs(length_penalty) <= _LARGEST_PENALTY:
        raise UserError(f"--length-penalty {length_penalty}: it must be a number, at most {_LARGEST_PENALTY}")
    if format in FORMATS and has_columns:
        raise UserError(
            f"--format {format}: --scores, --n-best and --alignments are for lines, and --confidence is for lines and "
            "text; leave them out"
        )
    if language is not None and format not in FORMATS:
        raise UserError("--language is for documents: add --format, such as --format text")
    if format in FORMATS and FORMATS[format].is_binary and output is None and sys.stdout.isatty():
        raise UserError(f"--format {format}: the translation is not text; add --output with the name of a file")
