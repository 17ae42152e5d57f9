"""Read facts about a model from the files in its folder, whoever wrote them."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import safe_open

from .. import __version__
from ..card_markdown import escape
from ..errors import UserError, as_user_error
from ..files import read_json, reading, write_whole
from ..model.configuration_scratch import ScratchConfig
from ..model.translation_pipeline import TARGET_FOLDER
from ..recipe.architecture import check_fields
from ..runs.checkpoint_store import WEIGHTS
from .languages import language_code, language_codes, language_name
from .plain_card import ModelFacts

CONVERSION = "conversion.json"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


# -- what is in files --------------------------------------------------------------------------------------------------


def read_config(folder: Path) -> ScratchConfig:
    """A folder's config. UserError if it is damaged, or belongs to another architecture."""
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
    """The single weight file, or else the shards. UserError if there are neither."""
    single = folder / WEIGHTS
    files = [single] if single.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not files:
        raise UserError(f"{folder}: there are no weights ({WEIGHTS} is missing); save the model there first")
    return files


@contextmanager
def open_weights(path: Path) -> Iterator[safe_open]:
    """A safetensors file. UserError if it cannot be read."""
    how = "cannot be read as safetensors, perhaps it is truncated: "
    with reading(path, how), safe_open(path, framework="pt") as weights:
        yield weights


def _count_parameters(paths: Iterable[Path]) -> tuple[int, list[str]]:
    """The number of parameters in safetensors files (tied ones count once), and their dtypes. Reads only headers."""
    count, dtypes = 0, set()
    for path in paths:
        with open_weights(path) as weights:
            tensors = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118
            count += sum(math.prod(each.get_shape()) for each in tensors)
            dtypes |= {_DTYPES.get(each.get_dtype(), each.get_dtype()) for each in tensors}
    return count, sorted(dtypes)


# -- the folder --------------------------------------------------------------------------------------------------------


@dataclass
class Conversion:
    """How a folder was converted from a model of another kind."""

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


def _tokenizer_languages(folder: Path) -> list[str]:
    """Source and target language as OPUS-MT tokenizers name them; empty if this one does not."""
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
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
    tags = list(tags) or _tokenizer_languages(folder)
    return ModelFacts(
        config,
        read_json(folder / "generation_config.json"),
        *_count_parameters(weight_files(folder)),
        languages=[escape(language_name(tag)) for tag in tags],
        codes=language_codes(tags),
        tokenizers=sum((folder / part / "tokenizer_config.json").is_file() for part in ("", TARGET_FOLDER)),
        sentencepiece=any(folder.glob("*.spm")),
        pipeline="translation" in (read_json(folder / "config.json").get("custom_pipelines") or {}),
    )
