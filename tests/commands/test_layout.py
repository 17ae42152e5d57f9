"""The shape of the package: which room may import which."""

import ast
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
ROOMS += ["metrics", "languages", "files", "errors"]
# What still imports upward.
UPWARD = {"apps/convert/checking.py": {"commands"}, "apps/web/export.py": {"commands"}, "loading.py": {"recipe"}}
UPWARD |= {"data/sources.py": {"hub", "inference"}, "metrics.py": {"model"}, "training/finish.py": {"apps", "hub"}}
UPWARD |= {f"training/{name}.py": {"hub"} for name in ("run", "train")}
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_rooms(path: Path) -> set[str]:
    """The rooms of this package that a module imports, at its top or within a function."""
    here, names = path.relative_to(PACKAGE).parent.parts, set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            base = ["modeling_scratch", *here[: len(here) - node.level + 1]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            names |= {f"{module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            names |= {f"{each.name}." for each in node.names}
    ours = [name.split(".")[1] for name in names if name.startswith("modeling_scratch.")]
    return {name if name in ROOMS else "__init__" for name in ours}


@each_module
def test_imports_point_down(path):
    room = path.relative_to(PACKAGE).with_suffix("").parts[0]
    above = ROOMS[: ROOMS.index(room)]
    assert imported_rooms(path) & set(above) == UPWARD.get(str(path.relative_to(PACKAGE)), set())


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
    there = {".".join(path.relative_to(ROOT).parent.parts) for path in PACKAGE.rglob("__init__.py")}
    assert set(listed) == there | {"modeling_scratch.configuration"}
