"""
The service's translation engines: PyTorch and CTranslate2, behind one interface.

The language directions of a service: a model for each, and how a request selects one.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from ...errors import UserError
from ...files import temporary_folder
from ...inference.alignments import Aligner
from ...loading import load_config, load_tokenizers, named_languages
from ...model.batched_generation import tokenize
from ..translate.pipeline import load_pipeline
from ..web.export import describe_origin

_LOWEST = -1e6  # what JSON has for minus infinity
_CT2_TOKENS = 512  # per batch; chosen with benchmarks/translation.py


@dataclass(frozen=True)
class Search:
    """
    How to search: the number of beams (None: the model's own), how many translations to return, and whether to align
    the best one.
    """

    num_beams: int | None = None
    several: int = 1
    align: bool = False

    def beams(self, own: int) -> int:
        """The beam width, by default the model's `own`: at least one beam for each translation returned."""
        return max(self.num_beams or own, self.several)


@dataclass(frozen=True)
class Hypothesis:
    """
    A translation. `score` is the natural logarithm of its probability under the model; `is_cut`: whether it reached the
    maximum length; `weights`: those of `Aligner.weights`, (target words, source words), or None if it is not aligned.
    """

    text: str
    score: float
    is_cut: bool
    weights: torch.Tensor | None = None


class Engine(Protocol):
    """
    Translates sentences of at most `limit` tokens, by default with `num_beams` beams, and aligns them if it
    `can_align`. Only one thread at a time may call `translate`; any thread may call `lengths`.
    """

    limit: int
    tokenizer: PreTrainedTokenizerBase
    num_beams: int
    can_align: bool
    can_fork: bool  # whether forked processes can translate with it

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        """The number of tokens of each sentence."""

    def translate(self, sentences: Sequence[str], search: Search) -> list[list[Hypothesis]]:
        """The translations of each sentence, best first. A blank sentence has blank translations."""


class TorchEngine:
    """A model in PyTorch, on the accelerator if there is one."""

    can_align = True

    def __init__(self, name: str):
        self.pipeline = load_pipeline([name])
        self.limit, self.tokenizer = self.pipeline.limit, self.pipeline.tokenizer
        self.num_beams = self.pipeline.model.generation_config.num_beams or 1
        self.can_fork = self.pipeline.can_fork
        self._aligner = Aligner(self.pipeline.model, self.tokenizer, self.pipeline.target_tokenizer)

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        return self.pipeline.lengths(sentences)

    def translate(self, sentences: Sequence[str], search: Search) -> list[list[Hypothesis]]:
        beams = search.beams(self.num_beams)
        found = self.pipeline(iter(sentences), num_beams=beams, num_return_sequences=search.several, return_scores=True)
        results = [
            [Hypothesis(each["translation_text"], max(each["score"], _LOWEST), each.get("cut", False)) for each in row]
            for row in found
        ]
        if search.align:
            weights = self._aligner.weights(sentences, [row[0].text for row in results])
            results = [[replace(row[0], weights=each), *row[1:]] for row, each in zip(results, weights, strict=True)]
        return results


class CTranslate2Engine:
    """
    A model on the CPU, converted to CTranslate2 when the service starts, in a temporary folder.

    Args:
        threads: each translates a batch; None: as many as PyTorch has.
    """

    can_align = False
    can_fork = False  # it has threads of its own

    def __init__(self, name: str, threads: int | None = None):
        import ctranslate2  # from an extra of this package

        from ..convert.ctranslate2 import SETTINGS, write_ctranslate2

        self.limit = load_config(name).max_position_embeddings
        with temporary_folder() as temporary:
            folder = temporary / "model"
            write_ctranslate2(name, folder)
            # One thread per batch: several would wait for each other at every step.
            options = {"inter_threads": threads or torch.get_num_threads(), "intra_threads": 1}
            self.translator = ctranslate2.Translator(str(folder), device="cpu", **options)
            self.settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.num_beams = self.settings["beam_size"]
        self.tokenizer, self.target_tokenizer = load_tokenizers(name)

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        return [len(row) for row in tokenize(self.tokenizer, sentences, None)]

    def translate(self, sentences: Sequence[str], search: Search) -> list[list[Hypothesis]]:
        settings = self.settings | {"beam_size": search.beams(self.num_beams), "num_hypotheses": search.several}
        sources = [self.tokenizer.convert_ids_to_tokens(row) for row in tokenize(self.tokenizer, sentences, self.limit)]
        found = [[Hypothesis("", 0.0, False)] * search.several for _ in sentences]
        filled = [place for place, source in enumerate(sources) if source]
        sources = [sources[place] for place in filled]
        share = math.ceil(sum(map(len, sources)) / self.translator.num_translators)
        results = self.translator.translate_batch(
            sources,
            max_batch_size=max(1, min(share, _CT2_TOKENS)),
            batch_type="tokens",
            return_scores=True,
            return_end_token=True,
            **settings,
        )
        for place, result in zip(filled, results, strict=True):
            found[place] = [self._hypothesis(*each) for each in zip(result.hypotheses, result.scores, strict=True)]
        return found

    def _hypothesis(self, tokens: list[str], score: float) -> Hypothesis:
        ids = self.target_tokenizer.convert_tokens_to_ids(tokens)
        text = self.target_tokenizer.decode(ids, skip_special_tokens=True)
        # CTranslate2 has divided the score by length^penalty.
        total = score * len(tokens) ** self.settings["length_penalty"]
        return Hypothesis(text, total, not tokens or tokens[-1] not in self.settings["end_token"])


ENGINES = {"torch": TorchEngine, "ctranslate2": CTranslate2Engine}


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
