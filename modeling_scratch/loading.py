"""Load models, tokenizers and configs from a folder or the Hub, and save tokenizers."""

import errno
import json
import logging
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.utils import GENERATION_CONFIG_NAME, cached_file

from .errors import UserError
from .files import read_json
from .languages import is_tag
from .model import ScratchConfig
from .model.confidence import FILE, Confidence
from .model.translation_pipeline import TARGET_FOLDER, load_target_tokenizer
from .model_names import loading

logger = logging.getLogger(__name__)

_KINDS = (ScratchConfig.model_type, "marian")  # of models that translate here

# For every loader: otherwise Transformers asks on standard input, and takes the text to translate for the answer.
NO_REMOTE_CODE = {"trust_remote_code": False}

_RESTORE = "copy it from where the model came from, which for one of this project may be a checkpoint of its run"


class _GenerationConfig(BaseModel):
    """The types of a generation config's fields, where Transformers does not check them."""

    model_config = ConfigDict(strict=True)

    do_sample: bool | None = None
    num_beams: Annotated[int, Field(ge=1)] | None = None
    num_return_sequences: Annotated[int, Field(ge=1)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    longest_training_source: Annotated[int, Field(ge=1)] | None = None
    min_new_tokens: float | None = None
    max_length: float | None = None
    min_length: float | None = None
    length_penalty: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: float | None = None
    temperature: float | None = None
    top_k: float | None = None
    top_p: float | None = None
    bos_token_id: int | list[int] | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | list[int] | None = None
    decoder_start_token_id: int | list[int] | None = None
    suppress_tokens: int | list[int] | None = None
    bad_words_ids: list[list[int]] | None = None


def best_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def load_config(name: str, **options) -> PreTrainedConfig:
    """The config of a model folder or Hub name. Raises UserError if there is none, or if it needs code of its own."""
    with loading(name, "config"):
        return AutoConfig.from_pretrained(name, **(NO_REMOTE_CODE | options))


def load_tokenizers(name: str, **options) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """
    Load the source and target tokenizers of a model folder or Hub name. A shared tokenizer is one object.

    Args:
        options: for `from_pretrained`, such as `revision`.

    Raises:
        UserError: one of them is missing or cannot be loaded, or the model is of a different kind.
    """
    config = load_config(name, **options)
    if config.model_type not in _KINDS:
        raise UserError(f"{name} is a {config.model_type} model; only {' and '.join(_KINDS)} models are supported")
    with loading(name, "tokenizer"):
        source = AutoTokenizer.from_pretrained(name, **(NO_REMOTE_CODE | options))
        is_for_both = config.model_type == "marian" and type(source).__name__ == "MarianTokenizer"
        target = source if is_for_both else load_target_tokenizer(name, config, source, **options)
    if getattr(source, "separate_vocabs", False):
        raise UserError(f"{name}: its tokenizer has a vocabulary for each side, which is not supported")
    return source, target


def load_confidence(name: str, **options) -> Confidence | None:
    """
    A model's confidence.json; None if it has none. Warns if Transformers' Trainer has saved the model since, whose file
    is that of the model that it began with. Raises UserError if the file cannot be loaded.
    """
    with loading(name, FILE):
        found = Confidence.load(name, **options)
    if found is not None and Path(name, "training_args.bin").is_file():
        logger.warning(
            f"{name}: {FILE} was calibrated before the model was trained with Transformers' Trainer; to calibrate it "
            "again, see docs/hub.md#change-it-and-share-it-again, or delete it"
        )
    return found


def load_translator(name: str, **options) -> PreTrainedModel:
    """
    Load the model in a folder or on the Hub.

    Raises:
        UserError: it cannot be loaded; lacks weights, which would be initialized at random; or lacks generation
            settings, in whose place Transformers would search greedily, for 20 tokens.
    """
    generation = _read_generation_config(name, **options)
    options = NO_REMOTE_CODE | options
    with loading(name, "weights"):
        model, report = AutoModelForSeq2SeqLM.from_pretrained(name, output_loading_info=True, **options)
    if missing := sorted(report["missing_keys"]):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{name}: its weights are incomplete: missing {missing[0]}{others}")
    _check_generation_config(name, model, generation)
    return model


def _read_generation_config(name: str, revision: str | None = None, **_) -> dict[str, Any] | None:
    """What is in a model's generation_config.json, which must not be damaged; None if there is none."""
    with loading(name, GENERATION_CONFIG_NAME):
        quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        found = cached_file(name, GENERATION_CONFIG_NAME, revision=revision, **quiet)
        if found is None:
            return None
        try:
            return read_json(Path(found))
        except UserError as error:
            raise UserError(f"{error}; {_RESTORE}") from error


def _check_generation_config(name: str, model: PreTrainedModel, content: dict[str, Any] | None) -> None:
    """
    Raise UserError if a model's generation_config.json is missing, incomplete or not valid: Transformers would search
    greedily, end after 20 tokens or never, and say nothing. Missing token ids are taken from config.json. Models of
    other projects may have all generation settings there.

    Args:
        content: of the file; None: there is none.
    """
    settings, config = model.generation_config, model.config
    has_length = settings.max_new_tokens is not None or settings.max_length is not None
    if content is None and (config.model_type == ScratchConfig.model_type or not has_length):
        raise UserError(f"{name}: {GENERATION_CONFIG_NAME} is missing: {_RESTORE}")
    if not has_length:
        lacks = f"{name}: {GENERATION_CONFIG_NAME} sets neither max_new_tokens nor max_length"
        # Models of other projects may leave the length to the caller, and one that was saved without settings has none.
        if config.model_type == ScratchConfig.model_type and not (content or {}).get("_from_model_config"):
            raise UserError(f"{lacks}: {_RESTORE}")
        logger.warning(f"{lacks}: outputs end after 20 tokens, unless a length is given")
    for key in ("eos_token_id", "decoder_start_token_id"):
        if getattr(settings, key) is None and (token := getattr(config, key, None)) is not None:
            logger.warning(f"{name}: {GENERATION_CONFIG_NAME} has no {key}; that of config.json is used")
            setattr(settings, key, token)
    try:
        _GenerationConfig.model_validate(settings.to_dict())
    except ValidationError as error:
        wrong = error.errors()[0]
        expected = wrong["msg"].replace("Input should be", "must be")
        raise UserError(
            f"{name}: {GENERATION_CONFIG_NAME}: {'.'.join(map(str, wrong['loc']))} {expected}, got {wrong['input']!r}"
        ) from None
    if isinstance(config, ScratchConfig):
        for key in ("eos_token_id", "decoder_start_token_id"):
            given, own = getattr(settings, key), getattr(config, key)
            ids = given if isinstance(given, list) else [given]
            if wrong_ids := [token for token in ids if token is not None and not 0 <= token < config.target_vocab_size]:
                raise UserError(
                    f"{name}: {GENERATION_CONFIG_NAME}: {key} is {wrong_ids[0]}, but the vocabulary has ids below "
                    f"{config.target_vocab_size}: {_RESTORE}"
                )
            if own not in ids:
                logger.warning(
                    f"{name}: {GENERATION_CONFIG_NAME}: {key} is {given}, but {own} in config.json, with which the "
                    "model was trained"
                )


def named_languages(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The source and target language codes that a saved tokenizer names, such as en and pt-BR; [] if it names none."""
    codes = [str(tokenizer.init_kwargs.get(f"{side}_lang")).replace("_", "-") for side in ("source", "target")]
    return codes if all(map(is_tag, codes)) else []


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """The rows that an embedding needs: the largest id plus one, since ids may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def save_tokenizers(
    source: PreTrainedTokenizerBase,
    target: PreTrainedTokenizerBase,
    folder: Path,
    limit: int | None = None,
    languages: tuple[str, str] | None = None,
) -> None:
    """
    Save the source's tokenizer to a folder, and the target's, if it differs, to a subfolder.

    Args:
        limit: the most tokens that the model takes, used by `truncation=True`; None: leave the tokenizers' own.
        languages: source and target language, saved under the names that OPUS-MT's tokenizers use; None: leave as is.
    """
    named = dict(zip(("source_lang", "target_lang"), languages, strict=True)) if languages else {}
    _save(source, folder, limit, named)
    if target is not source:
        _save(target, folder / TARGET_FOLDER, limit, named)


def _save(tokenizer: PreTrainedTokenizerBase, folder: Path, limit: int | None, settings: dict[str, str]) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is Exception:  # how the Rust library reports a full disk
            raise OSError(errno.EIO, f"the tokenizer cannot be written: {error}", str(folder)) from error
        raise
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) | settings
    if config.get("tokenizer_class") == "TokenizersBackend":  # unknown to Transformers 4
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if limit is not None and config.get("model_max_length", VERY_LARGE_INTEGER) >= VERY_LARGE_INTEGER:
        config["model_max_length"] = limit
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
