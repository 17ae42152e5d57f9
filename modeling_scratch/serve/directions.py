"""The language directions of a service: a model for each, and how a request selects one."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..loading import named_languages
from ..web.about import describe_origin
from .engines import Engine

_TAG = r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]+)*"
_NAMED = re.compile(rf"({_TAG}):({_TAG})=(.+)")


@dataclass(frozen=True, eq=False)
class Direction:
    """A model that translates between two languages, given by codes; `described` is what the page shows about it."""

    source: str
    target: str
    engine: Engine
    described: dict[str, Any]


def load_direction(name: str, load: Callable[[str], Engine]) -> Direction:
    """
    Load the model of a direction.

    Args:
        name: a model folder or Hub name, preceded by languages if it does not name its own: en:de=FOLDER.

    Raises:
        UserError: it cannot be loaded, or its languages are unknown.
    """
    given = _NAMED.fullmatch(name)
    name = given[3] if given else name
    engine = load(name)
    languages = [tag.replace("_", "-") for tag in given.groups()[:2]] if given else named_languages(engine.tokenizer)
    if not languages:
        raise UserError(f"{name} does not say its languages; name them, as in en:de={name}")
    return Direction(*languages, engine, describe_origin(name, languages))


class Directions:
    """
    All directions of a service.

    Raises:
        UserError: two models have the same direction.
    """

    def __init__(self, directions: Iterable[Direction]):
        self._by_codes: dict[tuple[str, str], Direction] = {}
        for direction in directions:
            source, target = direction.source, direction.target
            if self.find(source, target) is not None:
                raise UserError(f"two models translate from {source} to {target}; a service has one for a direction")
            self._by_codes[_normalized(source), _normalized(target)] = direction
        self.all = list(self._by_codes.values())
        self.names = {
            code: name
            for direction in self.all
            for code, name in zip(direction.described["languages"], direction.described["languageNames"], strict=True)
        }

    def find(self, source: str, target: str) -> Direction | None:
        """The direction between two languages, whatever the case and separators of their codes; None if not served."""
        return self._by_codes.get((_normalized(source), _normalized(target)))

    def is_one_language(self, source: str, target: str) -> bool:
        """Whether these are two spellings of one language, which is served but not translated into itself."""
        one, known = _normalized(source), map(_normalized, self.names)
        return one == _normalized(target) and one in known and self.find(source, target) is None


def _normalized(code: str) -> str:
    return code.lower().replace("_", "-")
