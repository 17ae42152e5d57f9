"""What the files of a model folder say about it: its config, weights, tokenizers, and what it was converted from."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedConfig

from .. import __version__
from ..errors import UserError, as_user_error
from ..files import read_json, reading, write_whole
from ..languages import language_code, language_codes, language_name
from ..model.confidence import FILE as CONFIDENCE
from ..model.configuration_scratch import TEXT2TEXT, TRANSLATION, ScratchConfig, task_of
from ..model.text import TextRules
from ..model.translation_pipeline import TARGET_FOLDER
from ..recipe.reading import check_fields
from ..run.folder import WEIGHTS
from .card_markdown import escape

CONVERSION = "conversion.json"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_config(folder: Path) -> ScratchConfig:
    """A folder's config. Raises UserError if it is damaged, or belongs to a different architecture."""
    path = folder / "config.json"
    content = read_json(path)
    kind = content.get("model_type")
    if kind != ScratchConfig.model_type:
        how = f"; scratch convert marian {folder} OUT makes one" if kind == "marian" else ""
        raise UserError(f"{path}: model_type is {kind!r}; only 'scratch' models are shared here{how}")
    named = {ScratchConfig.attribute_map.get(name, name): value for name, value in content.items()}
    check_fields({name: named[name] for name in ScratchConfig.fields() if name in named}, str(path))
    with as_user_error(f"{path}: "):
        return ScratchConfig.from_dict(content)


def weight_files(folder: Path) -> list[Path]:
    """The single weight file, or else the shards. Raises UserError if there are neither."""
    single = folder / WEIGHTS
    files = [single] if single.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not files:
        raise UserError(f"{folder}: there are no weights ({WEIGHTS} is missing); save the model there first")
    return files


@contextmanager
def open_weights(path: Path) -> Iterator[safe_open]:
    """A safetensors file. Raises UserError if it cannot be read."""
    how = "cannot be read as safetensors, perhaps it is truncated: "
    with reading(path, how), safe_open(path, framework="pt") as weights:
        yield weights


def _count_parameters(paths: Iterable[Path]) -> tuple[int, list[str]]:
    """The number of parameters in safetensors files (tied ones count once), and their dtypes. Reads only headers."""
    count, dtypes = 0, set()
    for path in paths:
        with open_weights(path) as weights:
            tensors = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118
            count += sum(math.prod(tensor.get_shape()) for tensor in tensors)
            dtypes |= {_DTYPES.get(tensor.get_dtype(), tensor.get_dtype()) for tensor in tensors}
    return count, sorted(dtypes)


@dataclass
class Conversion:
    """How a folder was converted from a model of a different kind."""

    kind: str  # e.g. Marian model
    name: str | None  # on the Hub
    largest_difference: float  # of logits of random ids, in float32
    version: str = __version__  # of this package

    def write(self, folder: Path) -> None:
        write_whole(folder / CONVERSION, json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def read(folder: Path) -> "Conversion | None":
        path = folder / CONVERSION
        if not path.is_file():
            return None
        with as_user_error(f"{path}: not what a conversion writes (delete it): "):
            conversion = Conversion(**read_json(path))
            if math.isfinite(conversion.largest_difference):
                return conversion
            raise ValueError("largest_difference is not finite")


@dataclass
class ModelFacts:
    """What is known about any model in a folder."""

    config: PreTrainedConfig
    generation: dict[str, Any]  # generation settings
    parameters: int
    dtypes: list[str]  # such as "float32"
    languages: list[str] = field(default_factory=list)  # names of source and target language; empty: unknown
    codes: list[str] = field(default_factory=list)  # their ISO 639 codes
    tokenizers: int = 1  # how many are stored with the model
    sentencepiece: bool = False  # whether they need this package
    pipeline: bool = True  # whether `pipeline` works
    base_model: str | None = None  # a name on the Hub
    sources: list[str] = field(default_factory=list)  # example sentences
    features: str = ""  # of an example sentence, if the model was trained with features
    is_translator: bool = True  # whether its task is translation
    task: str | None = None  # what the outputs are, in words, if they are not translations
    calibration: dict[str, Any] = field(default_factory=dict)  # what was measured of its confidence
    reserved: int = 0  # how many reserved characters it has learned to copy
    splits_lines: bool = False  # whether the pipeline splits texts into sentences
    is_marian: bool = False  # whether it is a MarianMTModel now, which needs no code from its repository

    @property
    def direction(self) -> str:
        return " to ".join(self.languages)

    @property
    def output(self) -> str:
        """What an output is called."""
        return "translation" if self.is_translator else "output"

    @property
    def size(self) -> str:
        """The number of parameters, rounded."""
        return f"{self.parameters / 1e6:,.1f} million" if self.parameters >= 1e6 else f"{self.parameters:,}"


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def tokenizer_languages(folder: Path) -> list[str]:
    """Source and target language as OPUS-MT tokenizers name them; empty if this one does not."""
    content = _tokenizer_config(folder)
    tags = [content.get("source_lang"), content.get("target_lang")]
    return tags if all(isinstance(tag, str) and language_code(tag) for tag in tags) else []


def read_facts(folder: Path, tags: Iterable[str] = ()) -> ModelFacts:
    """
    Read a model's facts from its folder.

    Args:
        tags: source and target language, if known from a better source than the tokenizer.

    Raises:
        UserError: a file is missing or damaged.
    """
    config = read_config(folder)
    rules = TextRules.of(_tokenizer_config(folder), task_of(config) == TRANSLATION, has_whole_symbols=False)
    tags = list(tags) or tokenizer_languages(folder)
    pipelines = read_json(folder / "config.json").get("custom_pipelines") or {}
    return ModelFacts(
        config,
        read_json(folder / "generation_config.json"),
        *_count_parameters(weight_files(folder)),
        languages=[escape(language_name(tag)) for tag in tags],
        codes=language_codes(tags),
        tokenizers=sum((folder / part / "tokenizer_config.json").is_file() for part in ("", TARGET_FOLDER)),
        sentencepiece=any(folder.glob("*.spm")),
        pipeline=not pipelines.keys().isdisjoint([TRANSLATION, TEXT2TEXT]),
        is_translator=rules.is_translation,
        reserved=rules.reserved,
        splits_lines=rules.splits_lines,
        calibration=read_json(confidence)["measured"] if (confidence := folder / CONFIDENCE).is_file() else {},
    )
