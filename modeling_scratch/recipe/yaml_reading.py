"""Read YAML as users write it: 1e-3 is a number, duplicate keys are errors, and errors give the line."""

import math
import os
import re
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError, as_user_error, beginning
from ..files import reading

_MOST_VALUES = 100_000  # with each alias counted as all that it stands for


class BoundedLoader(yaml.SafeLoader):
    """Refuses aliases that multiply: a few lines of them can stand for more values than memory holds."""

    def __init__(self, text: str):
        super().__init__(text)
        self.values, self.sizes = 0, {}

    def compose_node(self, parent, index):
        before, alias = self.values, self.peek_event() if self.check_event(yaml.AliasEvent) else None
        node = super().compose_node(parent, index)
        # What is not complete yet contains this alias.
        self.values += 1 if alias is None else self.sizes.get(id(node), math.inf)
        self.sizes[id(node)] = self.values - before
        if alias is not None and self.values > _MOST_VALUES:
            raise yaml.composer.ComposerError(
                problem=f"the alias *{alias.anchor} contains itself, or with the others stands for too many values",
                problem_mark=alias.start_mark,
            )
        return node


class _Loader(BoundedLoader):
    """
    Reads numbers and booleans as in YAML 1.2 (PyYAML takes 1e-3, without a dot, for text, and no, which is Norwegian,
    for false), expands the ~/ that shells leave in data.train_files=~/x, and refuses duplicate keys.
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


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    value = loader.construct_yaml_str(node)
    if re.search("[\0\ud800-\udfff]", value):  # from an escape
        raise yaml.constructor.ConstructorError(
            problem=f"{beginning(value)} holds a character that no text or path may have", problem_mark=node.start_mark
        )
    return os.path.expanduser(value) if value.startswith("~/") else value


_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_constructor("tag:yaml.org,2002:str", _text)


def parse_yaml(text: str, prefix: str = "") -> Any:
    """The value of a YAML text. UserError, after this prefix, says what is wrong with it, and on which line."""
    with as_user_error(prefix):
        try:
            return yaml.load(text, Loader=_Loader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
            where = f"line {mark.line + 1}: " if mark else ""
            raise UserError(f"{prefix}{where}{' '.join(str(problem).split())}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. UserError if there is none."""
    how = "cannot be read as YAML: "
    with reading(path, how):
        content = parse_yaml(path.read_text(encoding="utf-8"), f"{path}: {how}")
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
    return content
