"""The language directions of a service: the engine that translates each, and how a request selects one."""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from ...errors import UserError
from ...files import temporary_folder
from ...inference.translate import Translation, Translations, Translator, tokenize_texts
from ...loading import load_config, load_tokenizers, named_languages
from ..web.export import describe_origin

_CT2_TOKENS = 512  # per batch; chosen with benchmarks/translation.py


class Engine(Protocol):
    """The part of `Translator` that the service uses. `tokenize` is called from several threads."""

    source_tokenizer: PreTrainedTokenizerBase
    limit: int
    num_beams: int
    can_fork: bool

    def tokenize(self, texts: Sequence[str], *, features: Sequence[str] | None = None) -> list[list[int]]:
        """The token ids of each text, with its features; an empty list for a text with nothing to translate."""

    def translate_batch(self, texts: Sequence[str], tokens: list[list[int]], **settings) -> Translations:
        """The translations of each text, best first, with the settings of `Translator.translate_batch`."""


class CTranslate2Engine:
    """
    A model on the CPU, converted to CTranslate2 in a temporary folder when the service starts. It returns no word
    alignments.

    Args:
        threads: how many sub-batches are translated at a time; None: one per thread of PyTorch.
    """

    can_fork = False  # CTranslate2 starts threads, which a forked process would not have

    def __init__(self, name: str, threads: int | None = None):
        import ctranslate2  # from an extra of this package

        from ..convert.ctranslate2 import SETTINGS, write_ctranslate2

        self.limit = load_config(name).max_position_embeddings
        with temporary_folder() as temporary:
            folder = temporary / "model"
            write_ctranslate2(name, folder)
            # One thread per sub-batch: several would wait for each other at every step.
            options = {"inter_threads": threads or torch.get_num_threads(), "intra_threads": 1}
            self.translator = ctranslate2.Translator(str(folder), device="cpu", **options)
            self.settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.num_beams = self.settings["beam_size"]
        self.source_tokenizer, self.target_tokenizer = load_tokenizers(name)

    def tokenize(self, texts: Sequence[str], *, features: Sequence[str] | None = None) -> list[list[int]]:
        return tokenize_texts(self.source_tokenizer, texts, features=features)

    def translate_batch(
        self,
        texts: Sequence[str],
        tokens: list[list[int]],
        num_beams: int | None = None,
        num_return_sequences: int = 1,
        **ignored,
    ) -> Translations:
        settings = self.settings | {"num_hypotheses": num_return_sequences, "beam_size": num_beams or self.num_beams}
        share = math.ceil(sum(map(len, tokens)) / self.translator.num_translators)
        results = self.translator.translate_batch(
            [self.source_tokenizer.convert_ids_to_tokens(row) for row in tokens],
            max_batch_size=max(1, min(share, _CT2_TOKENS)),
            batch_type="tokens",
            return_scores=True,
            return_end_token=True,
            **settings,
        )
        return [
            [self._translation(*each) for each in zip(result.hypotheses, result.scores, strict=True)]
            for result in results
        ]

    def _translation(self, tokens: list[str], score: float) -> Translation:
        ids = self.target_tokenizer.convert_tokens_to_ids(tokens)
        text = self.target_tokenizer.decode(ids, skip_special_tokens=True)
        # CTranslate2 divides the score by length^penalty.
        total = score * len(tokens) ** self.settings["length_penalty"]
        return Translation(text, total, not tokens or tokens[-1] not in self.settings["end_token"])


def load_torch_engine(name: str, dtype: str | None = None) -> Translator:
    """Load a model in PyTorch, on the GPU if there is one. Raises ValueError if its alignment heads do not exist."""
    translator = Translator.load([name], dtype=dtype)
    _ = translator.aligner  # created now, so that an error stops the start and not a request
    return translator


ENGINES = {"torch": load_torch_engine, "ctranslate2": CTranslate2Engine}


_TAG = r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]+)*"
_NAMED = re.compile(rf"({_TAG}):({_TAG})=(.+)")


@dataclass(frozen=True, eq=False)
class Direction:
    """A model that translates from one language code to another; `described` is what the page shows about it."""

    source: str
    target: str
    engine: Engine
    described: dict[str, Any]


def load_direction(name: str, load: Callable[[str], Engine]) -> Direction:
    """
    Load the model of a direction.

    Args:
        name: a model folder or Hub name, after its languages if the model does not name them: en:de=FOLDER.

    Raises:
        UserError: the model cannot be loaded, or its languages are unknown.
    """
    given = _NAMED.fullmatch(name)
    name = given[3] if given else name
    engine = load(name)
    languages = (
        [tag.replace("_", "-") for tag in given.groups()[:2]] if given else named_languages(engine.source_tokenizer)
    )
    if not languages:
        raise UserError(f"{name} does not name its languages; if it is a translator, add them, as in en:de={name}")
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
                raise UserError(f"two models translate from {source} to {target}; give one per direction")
            self._by_codes[_normalized(source), _normalized(target)] = direction
        self.all = list(self._by_codes.values())
        self.names = {
            code: name
            for direction in self.all
            for code, name in zip(direction.described["languages"], direction.described["languageNames"], strict=True)
        }

    def find(self, source: str, target: str) -> Direction | None:
        """The direction between two languages, in any spelling of their codes; None if it is not served."""
        return self._by_codes.get((_normalized(source), _normalized(target)))

    def is_one_language(self, source: str, target: str) -> bool:
        """Whether both codes stand for one served language, and no model translates it into itself."""
        one, known = _normalized(source), map(_normalized, self.names)
        return one == _normalized(target) and one in known and self.find(source, target) is None


def _normalized(code: str) -> str:
    return code.lower().replace("_", "-")
