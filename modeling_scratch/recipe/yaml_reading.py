"""Read YAML as users write it: 1e-3 is a number, duplicate keys are errors, and errors give the line."""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError


class _Loader(yaml.SafeLoader):
    """
    Reads numbers and booleans as in YAML 1.2 (PyYAML takes 1e-3, without a dot, for text, and no, which is Norwegian,
    for false), and refuses duplicate keys.
    """

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)  # before merge keys (<<) add keys of other mappings
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} appears twice", problem_mark=key.start_mark
                )
            seen.add((key.tag, key.value if isinstance(key, yaml.ScalarNode) else key))
        return node


# Without PyYAML's octal numbers (010 is 8), those to base 60 (1:30 is 90), and its other names of true and false.
_REPLACED = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:bool")
_Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][\d_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"), list("-+.0123456789")
)


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    """A number with a point or an exponent; 1e5, which has no point, is an integer."""
    value = loader.construct_yaml_float(node)
    return int(value) if "." not in node.value and value.is_integer() else value


_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def _at_home(value: Any) -> Any:
    """The value, with the ~/ that shells leave in data.train_files=~/x expanded in every text."""
    if isinstance(value, list):
        return [_at_home(each) for each in value]
    if isinstance(value, dict):
        return {key: _at_home(each) for key, each in value.items()}
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. ValueError, mostly a UserError, says what is wrong with it, and on which line."""
    try:
        return _at_home(yaml.load(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise UserError(f"{f'line {mark.line + 1}: ' if mark else ''}{' '.join(str(problem).split())}") from None
    except RecursionError:
        raise UserError("it is nested too deeply") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. UserError if there is none."""
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
    return content
