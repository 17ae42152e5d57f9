"""Loading models, tokenizers and configs from a folder or the Hub, and saving tokenizers."""

import errno
import json
import re
from pathlib import Path

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from .errors import UserError, first_line
from .model.configuration_scratch import ScratchConfig
from .model.translation_pipeline import TARGET_FOLDER, load_target_tokenizer

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "source.spm", "vocab.json")  # at least one per tokenizer

# What loaders raise for JSON of an unexpected shape, or nested too deeply.
_DAMAGE = (RecursionError, TypeError, KeyError, AttributeError, ArithmeticError)

_KINDS = (ScratchConfig.model_type, "marian")  # of models that translate here

# For every loader: otherwise Transformers asks on standard input, and takes a line of text to translate for the answer.
NO_REMOTE_CODE = {"trust_remote_code": False}


def best_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def cannot_load(name: str, error: Exception) -> UserError:
    """The error for a model folder or Hub name that cannot be loaded."""
    if isinstance(error, _DAMAGE):
        found = " ".join(f"{type(error).__name__}: {error}".split())
        return UserError(f"{name}: one of its JSON files is damaged ({found}); save the model again")
    path = Path(name)
    if path.is_file():
        return UserError(f"{name} is a file; a model is a folder or a name on the Hub")
    if path.is_dir():
        for what, files in {"model": ("config.json",), "tokenizer": TOKENIZER_FILES}.items():
            if not any((path / file).is_file() for file in files):
                return UserError(f"{name} holds no {what}: there is no {' or '.join(files)}")
        return UserError(f"{name}: {first_line(error)}")
    try:
        validate_repo_id(name)
    except HFValidationError:
        return UserError(f"{name}: no such folder, and not a valid name on the Hub either")
    return UserError(f"{name}: no such folder, and it cannot be loaded from the Hub: {first_line(error)}")


def load_config(name: str, **options) -> PreTrainedConfig:
    """The config of a model folder or Hub name. UserError if there is none, or it needs code not installed here."""
    try:
        return AutoConfig.from_pretrained(name, **(NO_REMOTE_CODE | options))
    except (OSError, ValueError, *_DAMAGE) as error:
        raise cannot_load(name, error) from error


def load_tokenizers(name: str, **options) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """
    Load the source and target tokenizers of a model folder or Hub name. A shared tokenizer is one object.

    Args:
        options: for `from_pretrained`, such as `revision`.

    Raises:
        UserError: one of them is missing or cannot be loaded, or the model is of another kind.
    """
    config = load_config(name, **options)
    if config.model_type not in _KINDS:
        raise UserError(f"{name} is a {config.model_type} model; only {' and '.join(_KINDS)} models are supported")
    try:
        source = AutoTokenizer.from_pretrained(name, **(NO_REMOTE_CODE | options))
        is_for_both = config.model_type == "marian" and type(source).__name__ == "MarianTokenizer"
        target = source if is_for_both else load_target_tokenizer(name, config, source, **options)
    except (OSError, ValueError, *_DAMAGE) as error:
        raise cannot_load(name, error) from error
    if getattr(source, "separate_vocabs", False):
        raise UserError(f"{name}: its tokenizer has a vocabulary for each side, which is not supported")
    return source, target


def load_translator(name: str, **options) -> PreTrainedModel:
    """
    Load the model in a folder or on the Hub.

    Raises:
        UserError: it cannot be loaded, or lacks weights, which would be initialized at random.
    """
    try:
        options = NO_REMOTE_CODE | options
        model, report = AutoModelForSeq2SeqLM.from_pretrained(name, output_loading_info=True, **options)
    except (OSError, ValueError, *_DAMAGE) as error:
        raise cannot_load(name, error) from error
    except SafetensorError as error:
        raise UserError(f"{name}: its weights cannot be read; the file may be truncated ({error})") from error
    except RuntimeError as error:
        raise UserError(f"{name}: its weights do not fit its config: {first_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{name}: its weights are incomplete: missing {missing[0]}{others}")
    return model


def named_languages(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The source and target language codes that a saved tokenizer names, such as en and pt-BR; [] if it names none."""
    codes = [str(tokenizer.init_kwargs.get(f"{side}_lang")).replace("_", "-") for side in ("source", "target")]
    return codes if all(re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*", code) for code in codes) else []


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
    settings = json.loads(path.read_text(encoding="utf-8")) | settings
    if settings.get("tokenizer_class") == "TokenizersBackend":  # unknown to Transformers 4
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if limit is not None and settings.get("model_max_length", VERY_LARGE_INTEGER) >= VERY_LARGE_INTEGER:
        settings["model_max_length"] = limit
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
