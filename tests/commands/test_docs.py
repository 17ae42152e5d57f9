"""The pages in docs/ say what is true of the code: tables, names, options, links and pictures."""

import ast
import inspect
import re
from pathlib import Path
from typing import get_args

import pytest
import transformers
from conftest import ROOT

import modeling_scratch
from modeling_scratch import ScratchConfig
from modeling_scratch.commands import upload
from modeling_scratch.commands.figures import app
from modeling_scratch.recipe.reading import read_yaml
from modeling_scratch.recipe.schema import HubSection

PAGE = ROOT / "docs" / "model.md"
TEXT = PAGE.read_text(encoding="utf-8")
HUB_TEXT = (ROOT / "docs" / "hub.md").read_text(encoding="utf-8")
TEXTS = pytest.mark.parametrize("text", [TEXT, HUB_TEXT], ids=["model", "hub"])


def table(first_column: str, text: str = TEXT) -> list[list[str]]:
    """The rows of the one table whose header begins with `first_column`."""
    rows = text.split(f"\n| {first_column} |")
    assert len(rows) == 2
    lines = rows[1].split("\n")[2:]  # the header's rest and the ruler
    lines = lines[: next(index for index, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def choices(annotation) -> list[str]:
    """The words among what a Literal allows."""
    return [choice for choice in get_args(annotation) if isinstance(choice, str)]


def test_the_config_s_table_is_the_class():
    fields = ScratchConfig.fields()
    rows = [(name.strip("`"), default.strip("`"), meaning) for name, default, meaning in table("field")]
    assert [(name, default) for name, default, _ in rows] == [(name, repr(fields[name].default)) for name in fields]
    for name, _, meaning in rows:
        for choice in choices(fields[name].annotation):
            assert f"`{choice}`" in meaning, name


def test_the_variants_are_their_files():
    rows = table("file")
    assert {row[0].strip("`") for row in rows} == {
        "annotated",
        "addnorm",
        "pre-ln",
        "multi30k",
        "torch-post",
        "torch-pre",
    }
    for name, *said in rows:
        config = ScratchConfig(**read_yaml(ROOT / "configuration" / "models" / f"{name.strip('`')}.yaml"))
        yes = {True: "yes", False: "no"}
        is_so = [
            config.norm_position,
            yes[config.final_norm],
            yes[config.attention_dropout > 0],
            yes[config.activation_dropout > 0],
            yes[config.scale_embedding],
            "one" if config.share_encoder_decoder_embeddings else "two",
            f"{'bias' if config.lm_head_bias else 'no bias'}, {'' if config.tie_word_embeddings else 'not '}tied",
        ]
        assert said == is_so, name


def test_every_model_file_is_named():
    for path in (ROOT / "configuration" / "models").glob("*.yaml"):
        assert f"`{path.stem}`" in TEXT, path.name


def test_the_auto_classes_are_the_registered_ones():
    rows = table("class")
    assert len(rows) == 3
    for name, auto_class, _ in rows:
        mapping = getattr(transformers, auto_class.strip("`"))._model_mapping
        assert mapping[ScratchConfig].__name__ == re.search(r"`(\w+)`", name)[1]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    lines = page.read_text(encoding="utf-8").split("\n")
    titles = [line.lstrip("# ") for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@each_page
def test_links_exist(page):
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))]
    assert targets
    for target in targets:
        file, _, anchor = target.partition("#")
        if not file.startswith("https://"):
            linked = page.parent / file if file else page
            assert linked.exists(), target
            assert not anchor or anchor in headings(linked), target


@each_page
def test_named_modules_exist(page):
    """Files in the code's font, in a row of the map under the room that the row is about."""
    for room, row in re.findall(r"^\| `(\w+)/` \| (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        folder = ROOT / "modeling_scratch" / room
        names = re.findall(r"`(\w+\.py)`", row) if folder.is_dir() and room != "model" else []
        assert [name for name in names if not (folder / name).is_file()] == []


def test_pictures_exist():
    pages = [page.read_text(encoding="utf-8") for page in PAGE.parent.glob("*.md")]
    targets = re.findall(r"\]\(([^)]+)\)", "".join(pages))
    pictures = {target for target in targets if target.startswith("images/")}
    assert pictures == {f"images/{path.name}" for path in (PAGE.parent / "images").iterdir()}
    assert all((PAGE.parent / picture).stat().st_size < 250_000 for picture in pictures)


@pytest.mark.parametrize(("page", "least"), [("model", 16), ("tour", 20)])
def test_linked_names_are_defined_where_the_link_points(page, least):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    linked = re.findall(r"\[`(\w+)(?:\.(?!py`)\w+)?`\]\((\.\./modeling_scratch/[\w/]+\.py)\)", text)
    assert len(linked) >= least
    for name, target in linked:
        tree = ast.parse((PAGE.parent / target).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}, name


def test_other_names_in_the_code_s_font_exist(make_model):
    """Modules, config fields and arguments of forward, where they look like one: lower case with an underscore."""
    known = {part for name, _ in make_model(gated_ffn=True).named_modules() for part in name.split(".")}
    known |= set(ScratchConfig.fields()) | set(ScratchConfig.attribute_map)
    known |= {name for name, _ in inspect.getmembers(modeling_scratch.ScratchForConditionalGeneration)}
    for path in Path(modeling_scratch.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                known |= {node.name, *(argument.arg for argument in node.args.args)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):  # fields of data classes
                known.add(node.target.id)
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    spoken = set(re.findall(r"`([a-z]\w*_\w+)`", prose))
    # Of Transformers: what from_pretrained and generate take, what a type of rotary positions needs.
    theirs = {"attn_implementation", "rope_type", "rope_theta", "output_hidden_states"}
    theirs |= {"layer_norm", "rms_norm", "inverse_sqrt", "output_attentions"}
    theirs |= {"custom_generate", "return_dict_in_generate"}
    assert spoken - known - theirs == set()


@pytest.mark.parametrize("command", re.findall(r"scratch figures (\w+)", TEXT))
def test_the_commands_exist(command):
    assert command in {registered.callback.__name__ for registered in app.registered_commands}


@TEXTS
def test_the_code_on_the_page_parses(text):
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    for code in blocks:
        ast.parse(code)


def test_the_checkpoint_s_name_on_the_page_exists(make_model):
    (name,) = re.findall(r"`(model\.[\w.]+\.weight)`", TEXT)
    assert name in make_model().state_dict()


# -- docs/hub.md -------------------------------------------------------------------------------------------------------


def test_the_options_of_a_push_are_the_command_s():
    options = {option.split()[0].strip("`") for option, _ in table("option", HUB_TEXT)}
    parameters = set(inspect.signature(upload.main).parameters) - {"folder", "repo_id"}
    assert options == {f"--{name.replace('_', '-')}" for name in parameters}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", HUB_TEXT)) == options


def test_the_code_that_travels_is_listed(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    listed = {name for files, _ in table("file", HUB_TEXT) for name in re.findall(r"`(\w+\.py)`", files)}
    assert listed == {path.name for path in tmp_path.glob("*.py")}


def test_the_recipe_s_keys_exist():
    keys = re.findall(r"hub\.(\w+)=", HUB_TEXT)
    assert keys
    assert set(keys) <= set(HubSection.model_fields)
