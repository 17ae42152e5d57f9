"""
The models that translate a corpus for another to learn from: this project's, alone or as an ensemble; any
encoder-decoder model of Transformers, such as OPUS-MT's, M2M100 and NLLB; and those in CTranslate2's format.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase, StoppingCriteriaList

from ...errors import UserError
from ...inference.engine import Engine, EngineName, cores_of_process, ctranslate2_engine, keeping_threads_of_torch
from ...inference.translate import Translator
from ...languages import is_same_language, likely_locale
from ...loading import NO_REMOTE_CODE, load_config
from ...model.configuration_scratch import ScratchConfig
from ...model.text import batches_by_length
from ...model.translations import Translation, distinct
from ...model_names import loading
from ...run.processes import StopDecoding, StopRequest
from ..convert.generation_settings import as_list
from .work_folder import Translate

CONVERTED = "model.bin"  # CTranslate2's weights


class EngineTeacher:
    """
    A model of this project, or an ensemble, in one of the engines.

    Args:
        longest: source tokens; longer sentences are not translated.
        limits: of batches, for PyTorch.
        n_best: how many translations of each sentence to return at most, without those that were cut or lost a kept
            word; None: the best one, as it is.
    """

    def __init__(
        self, engine: Engine, longest: int, limits: dict[str, int], stop: StopRequest, n_best: int | None = None
    ):
        self.engine, self.longest, self.n_best = engine, longest, n_best
        self.settings: dict[str, Any] = {}
        if isinstance(engine, Translator):  # CTranslate2 makes its own batches, and a part takes it a few seconds
            self.settings |= limits | {"stopping_criteria": StoppingCriteriaList([StopDecoding(stop)])}
        if n_best is not None:
            self.settings |= {"num_beams": max(n_best, engine.num_beams), "num_return_sequences": n_best}

    def fitting(self, sentences: Sequence[str]) -> list[str]:
        """The sentences, with "" for one of more than `longest` tokens."""
        tokens = self.engine.tokenize(sentences)
        return [text if len(row) <= self.longest else "" for text, row in zip(sentences, tokens, strict=True)]

    def __call__(self, sentences: Sequence[str]) -> list[list[str]]:
        rows = self.engine.translate(self.fitting(sentences), **self.settings)
        if self.n_best is None:
            return [[row[0].text] for row in rows]
        return [[each.text for each in distinct(row) if _is_good(each)] or [""] for row in rows]


def _is_good(translation: Translation) -> bool:
    return bool(translation.text) and not translation.is_cut and not translation.lost_words


def load_engine(names: Sequence[str], engine: EngineName, device: torch.device) -> Engine:
    """
    A model of this project, or an ensemble of several.

    Args:
        engine: with "auto", CTranslate2 if `device` is a CPU and it finds the same best translations. Its others may
            differ from PyTorch's; a student learns from either.
    """
    if device.type == "cpu" or engine == "ctranslate2":
        found = ctranslate2_engine(names, engine)
        if found is not None:
            return found
    translator = Translator.load(names)
    translator.model.to(device)
    return translator


def load_teacher(
    names: Sequence[str],
    languages: tuple[str, str] | None,
    n_best: int,
    longest: int,
    max_new_tokens: int,
    limits: dict[str, int],
    engine: EngineName,
    device: torch.device,
    stop: StopRequest,
) -> Translate:
    """
    Load a model that translates sentences, or an ensemble of this project's.

    Args:
        names: model folders or Hub names, or one folder in CTranslate2's format.
        languages: of source and target, for models that are told them; None: none.
        n_best: how many translations of each sentence to return at most; fewer where some are equal, empty or cut.
        longest: source tokens; longer sentences are not translated.
        max_new_tokens: the most tokens of a translation, for models of other projects.
        limits: of batches.
        engine: for this project's models.

    Raises:
        UserError: a model cannot be loaded, or does not know a language.
    """
    if len(names) > 1 or _is_ours(names[0]):
        return EngineTeacher(load_engine(names, engine, device), longest, limits, stop, n_best)
    with loading(names[0], "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(names[0], **NO_REMOTE_CODE)
    told = LanguageTokens(names[0], tokenizer, languages)
    options = (names[0], told, n_best, longest, max_new_tokens, limits, device)
    if (Path(names[0]) / CONVERTED).is_file():
        return _CTranslate2Teacher(*options)
    return _TransformersTeacher(*options, stop)


def _is_ours(name: str) -> bool:
    if (Path(name) / CONVERTED).is_file():
        from ...inference.ctranslate2_engine import ORIGIN

        return (Path(name) / ORIGIN).is_file()
    return load_config(name).model_type == ScratchConfig.model_type


# -- models of other projects ------------------------------------------------------------------------------------------

# How tokenizers write languages: OPUS-MT's models with several target languages; MADLAD-400; NLLB and mBART.
_LANGUAGE_TOKEN = re.compile(r">>([A-Za-z_-]+)<<|<2([A-Za-z_]+)>|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")


class LanguageTokens:
    """
    The tokens by which a model is told its languages, if it is not of one direction: reads and writes texts with them.

    Args:
        languages: the codes of source and target.

    Attributes:
        prefix: stands before each source text.
        target, target_id: the token that every translation begins with; None: there is none.
        ids: of all of them.

    Raises:
        UserError: the model is told its languages, but does not know these, or there are none.
    """

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase, languages: tuple[str, str] | None):
        found = {token: _LANGUAGE_TOKEN.fullmatch(token) for token in tokenizer.get_vocab()}
        codes = {token: next(filter(None, match.groups())) for token, match in found.items() if match}
        # M2M100's, which are neither in its vocabulary nor special tokens.
        codes |= {token: code for code, token in getattr(tokenizer, "lang_code_to_token", {}).items()}
        self.tokenizer = tokenizer
        self.prefix, self.target, self.target_id = "", None, None
        self.ids = set(tokenizer.convert_tokens_to_ids(list(codes)))
        if not codes:
            return
        if languages is None:
            raise UserError(f"{name} is told its languages; set data.source_language and data.target_language")
        target = _matching(name, codes, languages[1])
        if target.startswith((">>", "<2")):  # the source may be in any of its languages
            self.prefix = f"{target} "
            return
        self.target, self.target_id = target, tokenizer.convert_tokens_to_ids(target)
        tokenizer.src_lang = codes[_matching(name, codes, languages[0])]  # type: ignore[attr-defined]

    def tokenized(self, sentences: Sequence[str], longest: int) -> list[list[int]]:
        """The token ids of each sentence; none for an empty one, or one of more than `longest` tokens."""
        texts = [self.prefix + text for text in sentences]
        rows = self.tokenizer(texts, truncation=False, verbose=False).input_ids
        return [row if text.strip() and len(row) <= longest else [] for text, row in zip(sentences, rows, strict=True)]

    def decoded(self, rows: list[list[int]]) -> list[str]:
        """The texts of hypotheses, without repeats and empty ones; [""] if none is left."""
        rows = [[token for token in row if token != self.target_id] for row in rows]
        texts = (self.tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows)
        return [text for text in dict.fromkeys(texts) if text] or [""]


def _matching(name: str, codes: dict[str, str], language: str) -> str:
    """The token of a language; of one with several scripts, that of the script in which it is mostly written."""
    fitting = [token for token, code in codes.items() if code == language or is_same_language(code, language)]
    if not fitting:
        raise UserError(f"{name} does not know the language {language}; it knows {', '.join(sorted(codes.values()))}")

    def script(code: str) -> str | None:
        locale = likely_locale(code)
        return None if locale is None else locale[1]

    return min(fitting, key=lambda token: (codes[token] != language, script(codes[token]) != script(language)))


class _TransformersTeacher:
    """An encoder-decoder model of Transformers."""

    def __init__(
        self,
        name: str,
        languages: LanguageTokens,
        n_best: int,
        longest: int,
        max_new_tokens: int,
        limits: dict[str, int],
        device: torch.device,
        stop: StopRequest,
    ):
        with loading(name, "weights"):
            self.model = AutoModelForSeq2SeqLM.from_pretrained(name, **NO_REMOTE_CODE).to(device).eval()
        self.model.generation_config.forced_eos_token_id = None  # which would hide that an output was cut
        self.languages, self.limits = languages, limits
        positions = getattr(self.model.config, "max_position_embeddings", None) or max(longest, max_new_tokens)
        self.longest, max_new_tokens = min(longest, positions), min(max_new_tokens, positions)
        self.settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False, "max_length": None}
        self.settings |= {"num_beams": max(n_best, self.model.generation_config.num_beams or 1)}
        self.settings |= {"num_return_sequences": n_best, "stopping_criteria": [StopDecoding(stop)]}
        if languages.target is not None:  # mBART-25 starts from it
            starts = self.model.generation_config.decoder_start_token_id in languages.ids
            self.settings["decoder_start_token_id" if starts else "forced_bos_token_id"] = languages.target_id

    def __call__(self, sentences: Sequence[str]) -> list[list[str]]:
        rows = self.languages.tokenized(sentences, self.longest)
        found = [[""]] * len(rows)
        count, ends = self.settings["num_return_sequences"], set(as_list(self.model.generation_config.eos_token_id))
        for batch in batches_by_length(list(map(len, rows)), **self.limits):
            inputs = self.languages.tokenizer.pad({"input_ids": [rows[place] for place in batch]}, return_tensors="pt")
            with torch.inference_mode():
                made = self.model.generate(**inputs.to(self.model.device), **self.settings).tolist()
            for number, place in enumerate(batch):
                ended = [row[1:] for row in made[number * count : (number + 1) * count] if ends & set(row[1:])]
                found[place] = self.languages.decoded(ended)
        return found


class _CTranslate2Teacher:
    """A model that was converted to CTranslate2's format, with its tokenizer of Transformers in the same folder."""

    def __init__(
        self,
        name: str,
        languages: LanguageTokens,
        n_best: int,
        longest: int,
        max_new_tokens: int,
        limits: dict[str, int],
        device: torch.device,
    ):
        import ctranslate2  # from an extra of this package

        self.languages, self.longest, self.batch_tokens = languages, longest, limits["batch_tokens"]
        if getattr(languages.tokenizer, "separate_vocabs", False):
            raise UserError(f"{name}: its tokenizer has a vocabulary for each side, which is not supported")
        where = {"device": "cuda", "device_index": device.index or 0} if device.type == "cuda" else {"device": "cpu"}
        try:
            with keeping_threads_of_torch():
                options = {"inter_threads": cores_of_process(), "intra_threads": 1, **where}
                self.translator = ctranslate2.Translator(name, **options)
        except RuntimeError as error:
            raise UserError(f"{name}: {CONVERTED} cannot be read: {error}") from error
        self.settings = {"beam_size": max(n_best, 2), "num_hypotheses": n_best, "max_decoding_length": max_new_tokens}
        self.settings |= {"return_end_token": True, "max_input_length": 0}

    def __call__(self, sentences: Sequence[str]) -> list[list[str]]:
        rows = self.languages.tokenized(sentences, self.longest)
        places = [place for place, row in enumerate(rows) if row]
        tokenizer, target = self.languages.tokenizer, self.languages.target
        made = self.translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(rows[place]) for place in places],
            None if target is None else [[target]] * len(places),
            max_batch_size=max(1, self.batch_tokens // 4),  # each thread has a batch
            batch_type="tokens",
            **self.settings,
        )
        found, end = [[""]] * len(rows), tokenizer.eos_token
        for place, result in zip(places, made, strict=True):
            ended = [row for row in result.hypotheses if row and row[-1] == end]
            found[place] = self.languages.decoded(list(map(tokenizer.convert_tokens_to_ids, ended)))
        return found
