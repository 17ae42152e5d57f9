"""The directions of a service: the engine of each, and how a request selects one."""

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
from ...languages import language_name
from ...loading import has_whole_symbols, is_tag, load_confidence, load_config, load_tokenizers, named_languages
from ...model.confidence import Confidence
from ...model.configuration_scratch import TRANSLATION, task_of
from ...recipe.schema import SOURCE, TARGET
from ..translate.kept_words import KEPT, KeptWords
from ..web.export import describe_origin

_CT2_TOKENS = 512  # per batch; chosen with benchmarks/translation.py


class Engine(Protocol):
    """The part of `Translator` that the service uses. `tokenize` is called from several threads."""

    source_tokenizer: PreTrainedTokenizerBase
    confidence: Confidence | None
    limit: int
    num_beams: int
    can_fork: bool

    def tokenize(self, texts: Sequence[str], *, features: Sequence[str] | None = None) -> list[list[int]]:
        """The token ids of each text, with its features; an empty list for a text that does not go to the model."""

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
        self.confidence = load_confidence(name)

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
            [self._translation(ids, *each) for each in zip(result.hypotheses, result.scores, strict=True)]
            for ids, result in zip(tokens, results, strict=True)
        ]

    def _translation(self, source: list[int], tokens: list[str], score: float) -> Translation:
        ids = self.target_tokenizer.convert_tokens_to_ids(tokens)
        text = self.target_tokenizer.decode(ids, skip_special_tokens=True)
        # CTranslate2 divides the score by length^penalty.
        total, length = score * len(tokens) ** self.settings["length_penalty"], len(tokens)
        is_cut = not tokens or tokens[-1] not in self.settings["end_token"]
        confidence = self.confidence(source, length, total) if self.confidence and tokens else None
        return Translation(text, total, is_cut, length=length, confidence=confidence)


def load_torch_engine(name: str, dtype: str | None = None) -> Translator:
    """Load a model in PyTorch, on the GPU if there is one. Raises ValueError if its alignment heads do not exist."""
    translator = Translator.load([name], dtype=dtype)
    _ = translator.aligner  # created now, so that an error stops the start and not a request
    return translator


ENGINES = {"torch": load_torch_engine, "ctranslate2": CTranslate2Engine}


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
    config, engine = load_config(name), load(name)
    languages = named_languages(engine.source_tokenizer)
    codes = [code.replace("_", "-") for code in given.groups()[:2]] if given else languages
    is_translator = task_of(config) == TRANSLATION
    if is_translator:
        if not codes:
            raise UserError(f"{name} does not name its languages; add them, as in en:de={name}")
        if not all(map(is_tag, codes)):
            raise UserError(f"{':'.join(codes)}={name}: it is a translator; give its languages, as in en:de={name}")
        languages = codes
    described = describe_origin(name, languages, config) | {"takesAnyText": has_whole_symbols(engine.source_tokenizer)}
    source, target = codes or (SOURCE, TARGET)
    described |= {"codes": [source, target]}
    return Direction(source, target, engine, described, KEPT if is_translator else None)


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
