"""
The interface of the two engines that translate texts, PyTorch (`translate.py`) and CTranslate2, and the choice between
them. This file needs no PyTorch.
"""

import importlib.util
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UserError
from ..model.confidence import Confidence
from ..model.text import (
    DEFAULT_BATCH_TOKENS,
    Reading,
    Sentences,
    TextRules,
    batches_by_length,
    check_inputs,
    left_as_it_is,
)
from ..model.translations import Batch, Translation, Translations

logger = logging.getLogger(__name__)

# New tokens; CTranslate2 has a table of positions, which conversion makes at least a little longer.
_LONGEST = 1000

EngineName = Literal["auto", "torch", "ctranslate2"]
INT8 = "int8"  # a dtype that only CTranslate2 computes in


class Engine(ABC):
    """
    A model, or several, with tokenizers.

    Attributes:
        confidence: the model's; None: it has none, or there are several models.
        limit: the number of source tokens that the model was made for. Only learned positions cannot go beyond it.
        longest_source: the most tokens of a source in training; None: unknown.
        unknown: the token id of symbols that a vocabulary of whole symbols lacks; None: the tokenizer reads all texts.
        num_beams: the beam width that the model was saved with.
        rules: how the model reads texts.
        can_fork: whether forked processes can translate with it, each a part of the texts.
        is_aligned: whether translations can have `weights`.
        batch_tokens: the most source tokens in a batch by default; None: no limit, since it makes its own batches.
    """

    is_aligned: bool
    batch_tokens: int | None = DEFAULT_BATCH_TOKENS

    if TYPE_CHECKING:  # read-only; attributes of one engine are properties of the other

        @property
        def limit(self) -> int: ...
        @property
        def longest_source(self) -> int | None: ...
        @property
        def unknown(self) -> int | None: ...
        @property
        def num_beams(self) -> int: ...
        @property
        def rules(self) -> TextRules: ...
        @property
        def can_fork(self) -> bool: ...
        @property
        def confidence(self) -> Confidence | None: ...

    @abstractmethod
    def tokenize(
        self, texts: Sequence[str], limit: int | None = None, features: Sequence[str] | None = None
    ) -> list[list[int]]:
        """
        The token ids of each text; none for a text without a letter or a digit, which is not translated unless the
        tokenizer's symbols may be anything. It may be called from several threads.

        Args:
            features: of each text; None: none.

        Raises:
            ValueError: a text is not a string, is not valid Unicode, or has more than `limit` tokens.
        """

    @abstractmethod
    def translate_batch(self, texts: Sequence[str], tokens: list[list[int]], **settings) -> Translations:
        """
        Translate one batch: the translations of each text, best first.

        Args:
            tokens: the token ids of each text.
            settings: `scores`: add scores and, if the model has been calibrated, confidences; None: if the search
                provides them. `align`: how many of the best translations of each text get `weights`. Further ones are
                arguments of `model.generate`.
        """

    def translations_of_each(self, settings: dict[str, Any]) -> int:
        """How many translations of each text `translate_batch` returns."""
        return settings.get("num_return_sequences") or 1

    def translate(
        self,
        texts: Sequence[str],
        tokens: list[list[int]] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        min_batches: int = 1,
        map_batches: Callable[[list[Batch], dict[str, Any]], Iterable[Translations]] | None = None,
        progress: Callable[[int], Any] = lambda texts: None,
        features: Sequence[str] | None = None,
        sentences: Sentences | None = None,
        **settings,
    ) -> Translations:
        """
        Translate texts: read each as `Reading` does, or take inputs that have been read and tokenized.

        Args:
            tokens: what `tokenize` returned for these texts, which are a reading's inputs. They stay sentences.
            batch_size: the most texts in a batch; None: no limit.
            batch_tokens: the most source tokens in a batch, including padding; None: without `batch_size`, the engine's
                number, and with it, no limit.
            min_batches: make smaller batches rather than fewer than this, if there are enough texts.
            map_batches: translates the batches, given the settings, and returns the translations of each in order, as
                several processes do together; None: one after the other, here.
            progress: called after each batch with its number of texts.
            features: of each text, if `tokens` are not given; None: none.
            sentences: see `Reading`, if `tokens` are not given.
            settings: for `translate_batch`.

        Returns:
            The translations of each text, best first, in the order of the texts. A text that is not translated is
            returned without surrounding white space.

        Raises:
            ValueError: a text has more tokens than there are learned positions; a setting is not valid.
        """
        if tokens is None:
            check_inputs(texts, [""] * len(texts) if features is None else features)
            read = Reading(texts, self.rules, sentences=sentences)
            tokens = self.tokenize(read.inputs, self._hard_limit(), read.of_inputs(features))
            limits = {"batch_size": batch_size, "batch_tokens": batch_tokens, "min_batches": min_batches}
            given: dict[str, Any] = {"map_batches": map_batches, "progress": progress, **limits, **settings}
            return read.restored(self.translate(read.inputs, tokens, **given))
        if batch_size is None and batch_tokens is None:
            batch_tokens = self.batch_tokens
        if min_batches > 1:
            share = max(1, -(-sum(map(len, tokens)) // min_batches))
            batch_tokens = share if batch_tokens is None else min(batch_tokens, share)
        places = batches_by_length([len(row) for row in tokens], batch_size, batch_tokens)
        translations = [[Translation(left_as_it_is(text))] * self.translations_of_each(settings) for text in texts]
        batches = [([texts[place] for place in batch], [tokens[place] for place in batch]) for batch in places]
        progress(sum(not row for row in tokens))
        for batch, found in zip(places, (map_batches or self._one_by_one)(batches, settings), strict=True):
            for place, each in zip(batch, found, strict=True):
                translations[place] = each
            progress(len(batch))
        return translations

    def _one_by_one(self, batches: list[Batch], settings: dict[str, Any]) -> Iterable[Translations]:
        return (self.translate_batch(*batch, **settings) for batch in batches)

    def _hard_limit(self) -> int | None:
        """The number of source tokens that the model cannot go beyond; None: there is none."""
        return None


def cores_of_process() -> int:
    """How many cores this process may use, or OMP_NUM_THREADS."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal():
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def option_for_ctranslate2(asked: EngineName, dtype: str | None) -> str | None:
    """
    The option that asks for CTranslate2; None: there is none.

    Raises:
        UserError: another one asks for PyTorch.
    """
    if dtype == INT8 and asked == "torch":
        raise UserError("--dtype int8: only CTranslate2 computes in 8 bits; leave out --engine torch")
    return "--dtype int8" if dtype == INT8 else "--engine ctranslate2" if asked == "ctranslate2" else None


@contextmanager
def keeping_threads_of_torch() -> Iterator[None]:
    """
    A context in which to make CTranslate2's translators: each sets the number of threads of OpenMP, and thus PyTorch's,
    for the whole thread that makes it. PyTorch need not be imported.
    """
    torch = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    try:
        yield
    finally:
        if torch is not None and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def ctranslate2_engine(
    names: Sequence[str],
    asked: EngineName,
    revision: str | None = None,
    dtype: str | None = None,
    aligns: bool = False,
    max_new_tokens: int | None = None,
    n_best: int | None = None,
) -> Engine | None:
    """
    The CTranslate2 engine of a model, or None where PyTorch is to translate: if it was asked for; or, by "auto", on a
    machine with a GPU, or where CTranslate2 is not installed, cannot express the model, or means something else by its
    settings or by what is asked for. Of the model, the log says why.

    Args:
        names: model folders or Hub names.
        revision: as `Translator.load` takes it.
        dtype: as `Translator.load` takes it; or int8, which asks for CTranslate2.
        aligns: translations need weights.
        max_new_tokens: the most tokens of a translation; None: the model's number.
        n_best: how many translations of each text are asked for; None: one.

    Raises:
        UserError: CTranslate2 was asked for, and cannot do it.
    """
    lacks = {
        "cannot run an ensemble": len(names) > 1,
        "reads the newest revision": revision is not None,
        f"computes in float32 or int8, not in {dtype}": dtype not in (None, "float32", INT8),
        f"may have no positions for outputs of more than {_LONGEST} tokens": (max_new_tokens or 0) > _LONGEST,
    }
    reason = next((lack for lack, holds in lacks.items() if holds), None)
    option = option_for_ctranslate2(asked, dtype)
    if option is not None and reason is not None:
        raise UserError(f"{option}: CTranslate2 {reason}")
    # Its search ends with fewer hypotheses, which seldom changes the best one, but often the others.
    is_auto, is_for_torch = option is None, aligns or n_best is not None
    is_installed = importlib.util.find_spec("ctranslate2") is not None
    if asked == "torch" or reason is not None or (is_auto and (is_for_torch or not is_installed)):
        return None
    try:
        from .ctranslate2_engine import CTranslate2Engine, has_gpu

        if is_auto and has_gpu():
            return None
        engine = CTranslate2Engine(names[0], dtype=dtype)
    # Its library may not fit the system, a conversion not be kept (OSError), or one that was kept be damaged.
    except (ImportError, OSError, RuntimeError, UserError) as error:
        if not is_auto:
            raise
        logger.info(f"PyTorch translates, not CTranslate2: {error}")
        return None
    if is_auto and engine.differences:
        logger.info(f"PyTorch translates, not CTranslate2: {'; '.join(engine.differences)}")
        return None
    for difference in engine.differences:
        logger.warning(difference)
    return engine
