"""`scratch corpus`: make files of training pairs, and look at them."""

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..data.corpus import write_corpus
from ..errors import UserError
from .cli import Debug, log_to_terminal, one_line_errors, report, reporting, set_up_terminal

if TYPE_CHECKING:
    from ..apps.corpora.corpus_from import Told
    from ..recipe.schema import DataSection

_SHOWN = 10  # files that a report names

# Options of several commands.
_SourceLanguage = Annotated[str | None, typer.Option(help="such as en; also the column of a table")]
_TargetLanguage = Annotated[str | None, typer.Option(help="such as de")]
_SourceColumn = Annotated[str | None, typer.Option(help="of tables: a name, or a number if there is no header")]
_TargetColumn = Annotated[str | None, typer.Option(help="the same for the target")]
_RulesFile = Annotated[
    Path | None, typer.Option(help="a YAML file of what is dropped (default: configuration/cleaning.yaml)")
]

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help="Make files of training pairs."
)


@app.callback()
def _group() -> None:
    """Has the commands below named even while there is one."""


@app.command("embedded")
def embedded_command(
    folder: Annotated[Path, typer.Argument(help="a new or empty folder, for train.en, train.de, and so on")],
    train_size: Annotated[int, typer.Option(min=1, help="training pairs")] = 24000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Write the embedded corpus to text files, one sentence per line."""
    with one_line_errors(debug=False):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists and is not an empty folder; choose another name")
        written = write_corpus(folder, train_size, seed)
        report(f"wrote {', '.join(map(str, written))}", f"{folder} is written")


@app.command("split")
def split_command(
    pairs: Annotated[Path, typer.Argument(help="a table of pairs, such as `scratch corpus from` writes")],
    folder: Annotated[Path, typer.Argument(help="a new folder, for train.jsonl, validation.jsonl and test.jsonl")],
    source_language: Annotated[str, typer.Option(help="the column of the sources")],
    by: Annotated[
        str, typer.Option(help="pairs with the same text in this column, up to a #, stay together")
    ] = "origin",
    validation: Annotated[int, typer.Option(min=0, help="about how many pairs to hold out for validation")] = 1000,
    test: Annotated[int, typer.Option(min=0, help="about how many pairs to hold out for the test")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="decides which files are held out")] = 0,
    debug: Debug = False,
) -> None:
    """
    Hold out whole files or packages for validation and test, without the sources that other files have too, so that
    scores are those of new files.
    """
    log_to_terminal(uses_transformers=False)
    with one_line_errors(debug):
        from ..apps.corpora.splitting import split_corpus

        split = split_corpus(pairs, folder, source_language, by, validation, test, seed)
        lines = [f"{folder / name}.jsonl: {count:,} pairs" for name, count in split.pairs.items()]
        for name, files in split.held_out.items():
            shown = [*files[:_SHOWN], *([f"{len(files) - _SHOWN:,} more"] if len(files) > _SHOWN else [])]
            lines += [f"held out for {name}: {', '.join(shown)}"] if files else []
        lines.append(f"left out of both: {split.also_elsewhere:,} pairs whose sources are in other files too")
        report("\n".join(lines), f"{folder} is written")


@app.command("from")
def from_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="files, folders and ZIP archives: TMX, XLIFF, SDLXLIFF, MQXLIFF, MXLIFF, PO, MO, Qt's .ts, XLSX, ODS, "
            "CSV, TSV, WMT's XML; and pairs of files in one language: JSON, ARB, .properties, .strings, Android's XML, "
            "SRT, VTT, SGM, text. The two are found by the languages in their names, or named as SOURCE:TARGET"
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT.jsonl", help="the file to write; it must not exist")],
    source_language: Annotated[str, typer.Option(help="such as en; en-US and en-GB serve for it")],
    target_language: Annotated[str, typer.Option(help="such as de")],
    inline_tags: Annotated[
        Literal["drop", "placeholders", "text"],
        typer.Option(help="what becomes of tags within the texts of TMX and XLIFF: left out, {1}, or their code"),
    ] = "drop",
    source_column: _SourceColumn = None,
    target_column: _TargetColumn = None,
    debug: Debug = False,
) -> None:
    """
    Make training pairs of translation memories, catalogs, spreadsheets and subtitles: a line of JSON for each, with its
    origin. What is not translated, not finished or obsolete is skipped and counted.
    """
    log_to_terminal(uses_transformers=False)
    with one_line_errors(debug):
        from ..apps.corpora.corpus_from import corpus_from
        from ..apps.corpora.units import Request

        if (source_column is None) != (target_column is None):
            raise UserError("--source-column and --target-column: give both")
        columns = None
        if source_column is not None and target_column is not None:
            columns = _column(source_column), _column(target_column)
        request = Request(_tag(source_language), _tag(target_language), inline_tags, columns)
        with reporting(f"{output} is written") as lines:
            told, others = corpus_from(files, output, request)
            if len(told) <= _SHOWN:
                lines += [f"{name}: {entry}" for name, entry in told.items()]
            lines += [*others, *_sum(output, list(told.values()), request.source, request.target)]


@app.command("from-system")
def from_system_command(
    language: Annotated[str, typer.Argument(help="the language of the translations, such as de or pt-BR")],
    output: Annotated[Path | None, typer.Argument(help="the file to write (default: system-en-LANGUAGE.jsonl)")] = None,
    debug: Debug = False,
) -> None:
    """
    Make training pairs, from English, of the message catalogs that are installed on this machine. They have the
    licenses of their packages, which are listed: what you may do with the pairs, and with a model, depends on them.
    """
    log_to_terminal(uses_transformers=False)
    with one_line_errors(debug):
        from ..apps.corpora.harvest import ENGLISH, corpus_from_system

        language = _tag(language)
        output = output or Path(f"system-{ENGLISH}-{language}.jsonl")
        with reporting(f"{output} is written") as lines:
            told = corpus_from_system(language, output)
            packages = Counter[tuple[str, str]]()
            for catalog, entry in told:
                packages[catalog.package or catalog.origin, catalog.license] += entry.pairs
            width = max(len(name) for name, _ in packages)
            lines += [f"{name:{width}} {count:7,}  {license}" for (name, license), count in packages.most_common()]
            lines += _sum(output, [entry for _, entry in told], ENGLISH, language)


def _tag(language: str) -> str:
    """A language tag. UserError: it is none."""
    from ..languages import language_code

    tag = language.strip().replace("_", "-")
    if language_code(tag) is None:
        raise UserError(f"{language} is not a language; give a code such as en, de or pt-BR")
    return tag


def _column(column: str) -> str | int:
    return int(column) if column.isdecimal() and int(column) > 0 else column


def _sum(output: Path, told: "list[Told]", source: str, target: str) -> list[str]:
    """The last lines of a report: what was written, and the next commands."""
    from ..apps.corpora.corpus_from import Told

    whole = Told(sum(entry.pairs for entry in told), sum((entry.skipped for entry in told), Counter()))
    train = _training_on(output, corpus_data(source, target))
    sides = ["--source-language", source, "--target-language", target]
    look = shlex.join(["scratch", "corpus", "report", str(output), *sides])
    return [f"wrote {output}: {whole}", f"  {look}", f"  {train}"]


def _training_on(pairs: Path, data: "DataSection") -> str:
    """The command that trains on a file of pairs."""
    keys = {"train_files": pairs, "validation_files": "null", "test_files": "null"}
    if data.languages != ("en", "de"):  # as own-text has them
        keys |= {"source_language": data.source_language or "null", "target_language": data.target_language or "null"}
    # Cells of columns with numbers are written under the names of the languages.
    columns = {"source_column": data.source_column, "target_column": data.target_column}
    keys |= {key: name for key, name in columns.items() if isinstance(name, str)}
    return shlex.join(["scratch", "train", "--config", "own-text", *(f"data.{key}={keys[key]}" for key in keys)])


@app.command("clean")
def clean_command(
    files: Annotated[
        list[str],
        typer.Argument(help="what data.train_files of a recipe names: tables, two text files, or the prefix of two"),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT.jsonl", help="the file to write; it must not exist")],
    source_language: _SourceLanguage = None,
    target_language: _TargetLanguage = None,
    source_column: _SourceColumn = None,
    target_column: _TargetColumn = None,
    test: Annotated[
        list[str] | None, typer.Option(help="files of a test set, named like FILES; its sources are dropped")
    ] = None,
    rules: _RulesFile = None,
    debug: Debug = False,
) -> None:
    """
    Drop pairs with a fault: misaligned, cut, in another language, copied, of broken encoding and so on. They stay in
    OUTPUT-dropped.jsonl, with the reasons.
    """
    log_to_terminal(uses_transformers=False)
    with one_line_errors(debug):
        from ..apps.corpora.cleaning import clean_corpus, describe_cleaning
        from ..apps.corpora.pair_files import PairFiles, sources_of_tests
        from ..apps.corpora.rules import CLEANING_FILE, read_rules

        chosen = read_rules(rules)
        data = corpus_data(source_language, target_language, source_column, target_column)
        done = clean_corpus(PairFiles(files, data, "FILES"), output, chosen, sources_of_tests(test or [], data))
        text = [
            describe_cleaning(done, chosen),
            "",
            f"the dropped pairs, with the reasons: {done.dropped_file}",
            f"to keep more or fewer: change a copy of {CLEANING_FILE}, and name it with --rules",
            f"next: {_training_on(output, data)}",
        ]
        report("\n".join(text), f"{output} is written")


@app.command("report")
def report_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILES]... | [KEY=VALUE]...",
            help="what data.train_files of a recipe names: tables, two text files, or the prefix of two; with "
            "--config, recipe keys to change",
        ),
    ] = None,
    source_language: _SourceLanguage = None,
    target_language: _TargetLanguage = None,
    source_column: _SourceColumn = None,
    target_column: _TargetColumn = None,
    test: Annotated[
        list[str] | None, typer.Option(help="files of a test set, named like FILES, whose sources are looked for")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="instead of FILES: a recipe, whose training pairs to look at, and test sets")
    ] = None,
    rules: _RulesFile = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="a model folder or Hub name, with whose tokenizer to count tokens")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="the page to write (default: NAME-report.html in this folder)")
    ] = None,
    debug: Debug = False,
) -> None:
    """
    Tell what is in a corpus and what is wrong with it, here and as a page: lengths, copies, other languages, broken
    encoding, lost placeholders, test sentences and so on, with the worst pairs of each.
    """
    set_up_terminal() if config else log_to_terminal(uses_transformers=False)
    with one_line_errors(debug):
        from ..apps.corpora.corpus_report import pairs_of_files, pairs_of_recipe, report_on
        from ..apps.corpora.pair_files import PairFiles, sources_of_tests
        from ..apps.corpora.report_page import check_page, describe, write_page
        from ..apps.corpora.rules import read_rules
        from ..recipe import find_recipe
        from ..recipe.reading import load_recipe

        options = [
            ("--source-language", source_language),
            ("--target-language", target_language),
            ("--source-column", source_column),
            ("--target-column", target_column),
            *(("--test", name) for name in test or []),
        ]
        given = [part for name, value in options if value is not None for part in (name, value)]
        if config is not None:
            if given:
                raise UserError(f"{given[0]} is for FILES; a recipe has its own")
            corpus = pairs_of_recipe(load_recipe(find_recipe(config), files or []))
            command = ["scratch", "train", "--config", config, *(files or [])]
        elif files:
            data = corpus_data(source_language, target_language, source_column, target_column)
            corpus = pairs_of_files(files, PairFiles(files, data, "FILES"), sources_of_tests(test or [], data))
            command = ["scratch", "corpus", "clean", *files, "clean.jsonl", *given]
            command += ["--rules", str(rules)] if rules else []
        else:
            raise UserError("name the FILES of a corpus, or a recipe with --config")
        page = html or Path(f"{Path(config or files[0]).name.partition('.')[0]}-report.html")  # type: ignore[index]
        check_page(page)
        tokenizers = None
        if tokenizer is not None:
            from ..loading import load_tokenizers

            tokenizers = load_tokenizers(tokenizer)
        found = report_on(corpus, read_rules(rules), tokenizers)
        with reporting(f"{page} is written") as lines:
            write_page(page, found, shlex.join(command))
            lines += [*describe(found), "", f"the worst pairs of each kind, and pictures: {page}"]
            lines += [f"next: {shlex.join(command)}"]


def corpus_data(
    source_language: str | None,
    target_language: str | None,
    source_column: str | None = None,
    target_column: str | None = None,
) -> "DataSection":
    """A recipe's section of data with these languages and columns. UserError if only one of two is given."""
    from ..recipe.schema import DataSection

    for one, other, name in ((source_language, target_language, "language"), (source_column, target_column, "column")):
        if (one is None) != (other is None):
            raise UserError(f"--source-{name} and --target-{name}: give both")
    columns = [None if name is None else _column(name) for name in (source_column, target_column)]
    return DataSection.model_validate(
        {
            "train_files": ["pairs"],  # so that the languages are not those of the embedded corpus
            "source_language": source_language,
            "target_language": target_language,
            "source_column": columns[0],
            "target_column": columns[1],
        }
    )
