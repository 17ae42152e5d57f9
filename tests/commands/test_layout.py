"""The shape of the package: which room may import which."""

import ast
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "modeling_scratch"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
# From the top: a room imports those below it.
ROOMS = ["commands", "training", "serve", "web", "hub", "convert", "figures", "documents", "data", "runs", "recipe"]
ROOMS += ["model"]
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_rooms(path: Path) -> set[str]:
    """The sub-packages that a module imports relatively."""
    here, rooms = path.relative_to(PACKAGE).parent.parts, set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            target = [*here[: len(here) - node.level + 1], *(node.module or "").split(".")]
            rooms.add(target[0] or node.names[0].name)
    return rooms & set(ROOMS)


@each_module
def test_imports_point_down(path):
    room = path.relative_to(PACKAGE).parts[0]
    allowed = ROOMS if room not in ROOMS else ROOMS[ROOMS.index(room) :]
    assert imported_rooms(path) <= set(allowed)


@each_module
def test_temporary_folders_go_even_if_a_signal_ends_the_process(path):
    """Those of Python's own stay."""
    names = {each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in ast.walk(parsed(path))}
    assert path == PACKAGE / "files.py" or not names & {"TemporaryDirectory", "mkdtemp"}


@each_module
def test_the_first_line_says_what_a_module_is_for(path):
    assert len(ast.get_docstring(parsed(path)).splitlines()[0]) > 15


def test_every_sub_package_is_in_the_wheel():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    there = {f"modeling_scratch.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")}
    assert set(listed) == there | {"modeling_scratch", "modeling_scratch.configuration"}
