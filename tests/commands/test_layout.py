"""The shape of the package: which room may import which, and that a name means one thing."""

import ast
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "modeling_scratch"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
# From the top: a room, which is a folder or a module, imports those below it. The root's `__init__` lets users import
# the model.
ROOMS = [
    "__main__",
    "commands",
    "apps",
    "hub",
    "training",
    "inference",
    "data",
    "recipe",
    "loading",
    "__init__",
    "model",
]
ROOT_ROOMS = ["metrics", "languages", "files", "errors"]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, nodes) -> set[str]:
    """The full names that some nodes of a module import."""
    here, names = path.relative_to(PACKAGE).parent.parts, set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = ["modeling_scratch", *here[: len(here) - node.level + 1]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            names |= {f"{module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            names |= {f"{each.name}." for each in node.names}
    return names


def test_imports_point_down():
    """At the top of modules and within functions."""
    rooms, found = [*ROOMS, *ROOT_ROOMS], {}
    for path in MODULES:
        names = imported(path, ast.walk(parsed(path)))
        ours = {name.split(".")[1] for name in names if name.startswith("modeling_scratch.")}
        ours = {name if name in rooms else "__init__" for name in ours}
        above = rooms[: rooms.index(path.relative_to(PACKAGE).with_suffix("").parts[0])]
        if upward := ours & set(above):
            found[str(path.relative_to(PACKAGE))] = upward
    assert found == {}


@pytest.mark.parametrize("room", ROOT_ROOMS)
def test_root_modules_import_only_the_standard_library(room):
    """Until a function needs more, so that recipes and figures can read the table of metrics without any extra."""
    path = PACKAGE / f"{room}.py"
    tops = {name.split(".")[0] for name in imported(path, parsed(path).body)}
    assert tops <= sys.stdlib_module_names | {"modeling_scratch"}


def test_a_name_means_one_thing():
    """Functions, classes and modules of different rooms have different names, except a command and what it calls."""
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


def test_temporary_folders_are_deleted_even_if_a_signal_ends_the_process():
    """Unlike those of Python's own functions."""
    for path in MODULES:
        names = {
            each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in ast.walk(parsed(path))
        }
        assert path == PACKAGE / "files.py" or not names & {"TemporaryDirectory", "mkdtemp"}, path


def test_every_module_has_a_docstring():
    for path in MODULES:
        assert len((ast.get_docstring(parsed(path)) or "").partition("\n")[0]) > 15, path


def test_every_sub_package_is_in_the_wheel():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    there = {".".join(path.relative_to(ROOT).parent.parts) for path in PACKAGE.rglob("__init__.py")}
    assert set(listed) == there | {"modeling_scratch.configuration"}
