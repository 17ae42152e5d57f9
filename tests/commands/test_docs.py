"""README.md and docs/ agree with the code: commands, keys, names, tables, links and pictures."""

import ast
import inspect
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import transformers
import typer
from conftest import ROOT, SMALL_MODEL

from modeling_scratch import ScratchConfig
from modeling_scratch.commands import app, upload
from modeling_scratch.hub.allowed_files import ALLOWED
from modeling_scratch.model.translation_pipeline import TARGET_FOLDER
from modeling_scratch.recipe.reading import read_yaml
from modeling_scratch.recipe.schema import Recipe
from modeling_scratch.run.folder import COMPANIONS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
MODEL, HUB = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("model.md", "hub.md"))


def table(first_column: str, text: str) -> list[list[str]]:
    """The rows of the only table whose header starts with `first_column`."""
    before_and_after = text.split(f"\n| {first_column} |")
    assert len(before_and_after) == 2
    lines = before_and_after[1].split("\n")[2:]  # after the header and the line below it
    lines = lines[: next(index for index, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_site_builds_without_broken_links_or_anchors(tmp_path):
    subprocess.run([sys.executable, ROOT / "docs" / "stage.py", tmp_path / "pages"], check=True)
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = config.replace("build/docs", str(tmp_path / "pages")).replace("build/site", str(tmp_path / "site"))
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", tmp_path / "mkdocs.yml"]
    build = subprocess.run(command, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr


def test_every_picture_is_shown_and_small():
    shown = {path for page in PAGES for path in re.findall(r"images/([\w-]+\.png)\)", page.read_text(encoding="utf-8"))}
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert shown == {path.name for path in pictures}
    assert all(path.stat().st_size < 250_000 for path in pictures)


def shell_lines(page: Path) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").split("\n")]


def mentions(page: Path) -> list[str]:
    """The inline code of a page."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", prose)]


def parse(words: list[str], is_complete: bool = True) -> None:
    """Parse the words after `scratch` as the command does. Raises an error if they are wrong."""
    command = typer.main.get_command(app)
    while hasattr(command, "resolve_command"):
        if not words and not is_complete:
            return
        _, command, words = command.resolve_command(typer.Context(command), words)
    try:
        command.make_context("scratch", list(words))
    except Exception as error:
        if is_complete or type(error).__name__ != "MissingParameter":
            raise


@each_page
def test_python_and_scratch_commands_can_be_parsed(page):
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        ast.parse(code)
    for line in shell_lines(page):
        words = shlex.split(line, comments=True)
        if "scratch" in words:
            words = words[words.index("scratch") + 1 :]
            end = next((index for index, word in enumerate(words) if word in ("|", "<", ">")), len(words))
            parse(words[:end])
    for code in mentions(page):
        if re.match(r"scratch [a-z]", code):
            parse(shlex.split(code)[1:], is_complete=False)


@each_page
def test_scripts_exist_and_have_the_named_options(page):
    for code in shell_lines(page) + mentions(page):
        for script, options in re.findall(r"python ((?:benchmarks|tests|docs)/\w+\.py)([^|;`]*)", code):
            source = (ROOT / script).read_text(encoding="utf-8")
            for option in re.findall(r"--[a-z][a-z-]+", options):
                assert option in source or option[2:].replace("-", "_") in source, (script, option)


@each_page
def test_recipe_keys_exist(page):
    for code in shell_lines(page) + mentions(page):
        for key in re.findall(
            r"(?<![\w./-])((?:model|data|tokenizer|optimization|evaluation|checkpoints|hub)\.\w[\w.]*)=", code
        ):
            section, name, *field = key.split(".")
            assert name in Recipe.model_fields[section].annotation.model_fields, key
            if name == "overrides" and field:
                assert field[0] in ScratchConfig.fields(), key


@cache
def sources() -> str:
    folders = ("modeling_scratch", "tests", "benchmarks", "configuration", "docs")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yaml")]
    return "\n".join(f"{path}\n{path.read_text(encoding='utf-8')}" for path in paths)


@each_page
def test_named_modules_exist_and_linked_names_are_defined_there(page):
    for name in re.findall(r"`((?:[\w-]+/)*\w+\.py)`", page.read_text(encoding="utf-8")):
        assert name == "run_translation.py" or f"/{name}\n" in sources(), name  # which was Transformers' own
    links = r"\[`(\w+)(?:\.(?!py`)\w+)?`\]\(((?:\.\./)*modeling_scratch/[\w/]+\.py)\)"
    for name, target in re.findall(links, page.read_text(encoding="utf-8")):
        tree = ast.parse((page.parent / target).read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        assert name in defined, (name, target)


def test_config_fields_and_arguments_named_in_model_md_exist():
    """Inline code in lower case with an underscore."""
    libraries = {"output_hidden_states", "rope_theta", "return_dict_in_generate"}
    named = {code for code in mentions(ROOT / "docs" / "model.md") if re.fullmatch(r"[a-z]\w*_\w+", code)}
    assert {name for name in named - libraries if not re.search(rf"\b{name}\b", sources())} == set()


def test_the_table_of_the_config_lists_its_fields_defaults_and_choices():
    fields = ScratchConfig.fields()
    rows = [(name.strip("`"), default.strip("`"), meaning) for name, default, meaning in table("field", MODEL)]
    assert [(name, default) for name, default, _ in rows] == [(name, repr(fields[name].default)) for name in fields]
    for name, _, meaning in rows:
        for choice in get_args(fields[name].annotation):
            assert not isinstance(choice, str) or f"`{choice}`" in meaning, name


def test_every_model_file_is_named_and_the_table_of_variants_agrees_with_them():
    assert [path for path in (ROOT / "configuration" / "models").iterdir() if f"`{path.stem}`" not in MODEL] == []
    rows = table("file", MODEL.split("## Model files and variants")[1])
    assert len(rows) == 6
    for name, *cells in rows:
        config = ScratchConfig(**read_yaml(ROOT / "configuration" / "models" / f"{name.strip('`')}.yaml"))
        yes = {True: "yes", False: "no"}
        assert cells == [
            config.norm_position,
            yes[config.final_norm],
            yes[config.attention_dropout > 0],
            yes[config.activation_dropout > 0],
            yes[config.scale_embedding],
            "one" if config.share_encoder_decoder_embeddings else "two",
            f"{'bias' if config.lm_head_bias else 'no bias'}, {'' if config.tie_word_embeddings else 'not '}tied",
        ], name


def test_the_table_of_auto_classes_lists_the_registered_ones():
    rows = table("class", MODEL)
    assert len(rows) == 3
    for name, auto_class, _ in rows:
        made = getattr(transformers, auto_class.strip("`")).from_config(ScratchConfig(**SMALL_MODEL))
        assert type(made).__name__ == re.search(r"`(\w+)`", name)[1]


def test_the_options_of_a_push_are_listed():
    options = {option.split()[0].strip("`") for option, _ in table("option", HUB)}
    parameters = set(inspect.signature(upload.main).parameters) - {"folder", "repo_id"}
    assert options == {f"--{name.replace('_', '-')}" for name in parameters}


def test_the_files_that_a_push_may_contain_are_listed():
    listed = {name for _, files in table("what", HUB) for name in re.findall(r"`([^`]+)`", files)}
    allowed = {name.removeprefix(f"{TARGET_FOLDER}/") for name in ALLOWED}
    assert listed == allowed | {*COMPANIONS, f"{TARGET_FOLDER}/", "README.md"}


def test_the_files_that_travel_are_listed(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    listed = {name for files, _ in table("file", HUB) for name in re.findall(r"`(\w+\.py)`", files)}
    assert listed == {path.name for path in tmp_path.glob("*.py")}
