"""The structure of the package: which folder may import which, and that a name means one thing."""

import ast
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "modeling_scratch"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
# From top to bottom: a folder or module may import those below it. `__init__` exports the model.
ROWS = [
    "__main__",
    "commands",
    "apps",
    "hub",
    "training",
    "run",
    "inference",
    "data",
    "recipe",
    "loading",
    "model_names",
    "__init__",
    "metrics",
    "model",
]
LOWEST = ["languages", "files", "errors"]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, nodes) -> set[str]:
    """The full names that these nodes of a module import."""
    here, names = path.relative_to(PACKAGE).parent.parts, set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = ["modeling_scratch", *here[: len(here) - node.level + 1]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            names |= {f"{module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            names |= {f"{each.name}." for each in node.names}
    return names


def test_modules_only_import_from_their_folder_and_below():
    """At the top and within functions."""
    rows, found = [*ROWS, *LOWEST], {}
    for path in MODULES:
        names = imported(path, ast.walk(parsed(path)))
        ours = {name.split(".")[1] for name in names if name.startswith("modeling_scratch.")}
        ours = {name if name in rows else "__init__" for name in ours}
        above = rows[: rows.index(path.relative_to(PACKAGE).with_suffix("").parts[0])]
        if upward := ours & set(above):
            found[str(path.relative_to(PACKAGE))] = upward
    assert found == {}


@pytest.mark.parametrize("name", ["metrics", *LOWEST])
def test_the_lowest_modules_import_only_the_standard_library(name):
    """At their top, so that no extra is needed to import them."""
    path = PACKAGE / f"{name}.py"
    tops = {name.split(".")[0] for name in imported(path, parsed(path).body)}
    assert tops <= sys.stdlib_module_names | {"modeling_scratch"}


def test_public_names_and_modules_are_unique():
    """Except those of commands."""
    places = defaultdict(set)
    for path in MODULES:
        if path.relative_to(PACKAGE).parts[0] == "commands":
            continue
        if path.stem != "__init__":
            places[path.name].add(path)
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path)
    assert [name for name, paths in places.items() if len(paths) > 1] == []


def test_models_and_pipelines_are_imported_from_the_package_that_registers_them():
    """Nothing else does, and without it the Auto classes know no models of type `scratch`."""
    modules = {"modeling_scratch", "translation_pipeline"}
    direct = {f"modeling_scratch.model.{module}.Scratch" for module in modules}
    for path in MODULES:
        if path.parent != PACKAGE / "model":
            names = imported(path, ast.walk(parsed(path)))
            assert not [name for name in names if name.startswith(tuple(direct))], path


def test_temporary_folders_are_made_by_files_py():
    """It deletes them even if a signal ends the process, unlike Python's own functions."""
    for path in MODULES:
        names = {
            each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in ast.walk(parsed(path))
        }
        assert path == PACKAGE / "files.py" or not names & {"TemporaryDirectory", "mkdtemp"}, path


def test_every_package_is_in_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    there = {".".join(path.relative_to(ROOT).parent.parts) for path in PACKAGE.rglob("__init__.py")}
    assert set(listed) == there | {"modeling_scratch.configuration"}


def test_every_file_that_is_not_python_is_in_the_wheel():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    folders = {name: ROOT.joinpath(*name.split(".")) for name in data if name != "modeling_scratch.configuration"}
    listed = {path for name, folder in folders.items() for pattern in data[name] for path in folder.glob(pattern)}
    there = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert there == {path for path in listed if path.is_file()}
