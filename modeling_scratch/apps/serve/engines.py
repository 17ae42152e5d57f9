"""The directions of a service: the engine of each, and how a request selects one."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ...inference.engine import Engine, ctranslate2_engine
from ...languages import is_tag, language_name
from ...model.kept_words import KEPT, KeptWords
from ...model.text import has_whole_symbols
from ...recipe import SOURCE, TARGET
from ..web.described import describe_origin

if TYPE_CHECKING:
    from ...inference.translate import Translator


def load_torch_engine(name: str, dtype: str | None = None) -> "Translator":
    """Load a model in PyTorch, on the GPU if there is one. Raises ValueError if its alignment heads do not exist."""
    from ...inference.translate import Translator  # here and below, since CTranslate2 needs no PyTorch

    translator = Translator.load([name], dtype=dtype)
    _ = translator.aligner  # created now, so that an error stops the start and not a request
    return translator


def load_ctranslate2_engine(name: str, dtype: str | None = None) -> Engine:
    """Load a model in CTranslate2, on the CPU."""
    engine = ctranslate2_engine([name], "ctranslate2", dtype=dtype)
    assert engine is not None, "it is only None where PyTorch may translate"
    return engine


ENGINES = {"torch": load_torch_engine, "ctranslate2": load_ctranslate2_engine}


_NAMED = re.compile(r"(\w[\w-]*):(\w[\w-]*)=(.+)")


@dataclass(frozen=True, eq=False)
class Direction:
    """
    A model, for requests from one code to another.

    Args:
        source, target: language codes, or names for the two sides of pairs without languages.
        described: what the page shows about it.
        kept: what stays as it is in texts; None: nothing, since the model is not a translator.
    """

    source: str
    target: str
    engine: Engine
    described: dict[str, Any]
    kept: KeptWords | None = None

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The tags of source and target; None where there are none, so that lines are not split into sentences."""
        source, target = self.described["languages"] or (None, None)
        return source, target


def load_direction(name: str, load: Callable[[str], Engine]) -> Direction:
    """
    Load the model of a direction.

    Args:
        name: a model folder or Hub name, after its languages if the model does not name them: en:de=FOLDER. Without
            languages, names for its sides may be given in the same way.

    Raises:
        UserError: the model cannot be loaded, or it is a translator whose languages are unknown.
    """
    given = _NAMED.fullmatch(name)
    name = given[3] if given else name
    engine = load(name)
    origin = getattr(engine, "origin", None) or _origin_of(name, engine)
    languages = origin["languages"]
    codes = [code.replace("_", "-") for code in given.groups()[:2]] if given else languages
    is_translator = origin["isTranslator"]
    if is_translator:
        if not codes:
            raise UserError(f"{name} does not name its languages; add them, as in en:de={name}")
        if not all(map(is_tag, codes)):
            raise UserError(f"{':'.join(codes)}={name}: it is a translator; give its languages, as in en:de={name}")
        languages = codes
    described = describe_origin(origin.get("name", name), languages, origin) | {"takesAnyText": origin["takesAnyText"]}
    source, target = codes or (SOURCE, TARGET)
    described |= {"codes": [source, target]}
    return Direction(source, target, engine, described, KEPT if is_translator else None)


def _origin_of(name: str, translator: "Translator") -> dict[str, Any]:
    """What origin.json has for a converted model."""
    from ...loading import load_config, named_languages
    from ..web.described import read_origin

    tokenizer = translator.source_tokenizer
    found = {"languages": named_languages(tokenizer), "takesAnyText": has_whole_symbols(tokenizer)}
    return read_origin(name, load_config(name)) | found


class Directions:
    """
    All directions of a service.

    Raises:
        UserError: two models have the same codes.
    """

    def __init__(self, directions: Iterable[Direction]):
        self._by_codes: dict[tuple[str, str], Direction] = {}
        for direction in directions:
            source, target = direction.source, direction.target
            if self.find(source, target) is not None:
                raise UserError(
                    f"two models go from {source} to {target}; give one for each direction, or, if they have no "
                    "languages, name their sides, as in words:phones=FOLDER"
                )
            self._by_codes[_normalized(source), _normalized(target)] = direction
        self.all = list(self._by_codes.values())
        codes = dict.fromkeys(code for direction in self.all for code in direction.described["codes"])
        languages = {code for direction in self.all for code in direction.described["languages"]}
        self.languages = [code for code in codes if code in languages]
        self.names = {code: language_name(code) if code in languages else code for code in codes}

    def find(self, source: str, target: str) -> Direction | None:
        """The direction between two languages, in any spelling of their codes; None if it is not served."""
        return self._by_codes.get((_normalized(source), _normalized(target)))

    def knows(self, code: str) -> bool:
        """Whether a code, in any spelling, is the source or the target of a direction."""
        return _normalized(code) in map(_normalized, self.names)

    def is_one_language(self, source: str, target: str) -> bool:
        """Whether both codes stand for one served language, and no model translates it into itself."""
        same = _normalized(source) == _normalized(target)
        return same and self.knows(source) and self.find(source, target) is None


def _normalized(code: str) -> str:
    return code.lower().replace("_", "-")
