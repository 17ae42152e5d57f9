"""The check of a model folder before it is shared: that a stranger who loads it gets what its author has."""

import ast
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_token
from PIL import Image
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig

from .. import __version__
from ..errors import UserError
from ..model import configuration_scratch
from ..model.configuration_scratch import ScratchConfig
from ..model.translation_pipeline import ScratchTranslationPipeline
from ..redaction import TOKEN
from ..runs.folder import CURVES
from . import probe as folder_probe
from .files import ALLOWED, CARD, chosen_files, copy_files
from .model_folder import read_config, read_json

__all__ = ["ALLOWED", "CARD", "check_folder", "chosen_files", "copy_files"]

logger = logging.getLogger(__name__)

IMPORTABLE = {"torch", "transformers", "huggingface_hub"} | sys.stdlib_module_names
# Settings whose types Transformers does not look at.
GENERATION_NUMBERS = ("num_beams", "max_new_tokens", "max_length", "length_penalty", "min_length", "repetition_penalty")
TOLERANCE = 1e-6  # of logits in float32: the same code on the same machine

# Besides the run's own samples: what a tokenizer can stumble over.
PROBES = ["Hello, world!", "Grüße aus Köln, naïve café.", "3.14 = 22/7?", "日本語 🙂", "<s> </s> <pad>", "a"]


def check_weights(files: dict[str, Path]) -> int:
    """Raise UserError if a weight file cannot be read or holds a number that is not finite. Returns the parameters."""
    count = 0
    for path in (path for name, path in files.items() if name.endswith(".safetensors")):
        try:
            with safe_open(path, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118
                    tensor = weights.get_tensor(name)
                    count += tensor.numel()
                    if not torch.isfinite(tensor).all():
                        raise UserError(f"{path}: {name} holds NaN or infinite values; push an earlier checkpoint")
        except SafetensorError as error:
            raise UserError(f"{path}: cannot be read as safetensors, perhaps it is truncated ({error})") from None
    return count


def check_texts(files: dict[str, Path]) -> None:
    """Raise UserError for a text file that is damaged, or that holds what looks like a token."""
    for name, path in files.items():
        if name.endswith(".json"):
            read_json(path)
        if path.suffix not in (".safetensors", ".png", ".spm", ".model"):
            text = path.read_bytes().decode("utf-8", errors="replace")
            token = get_token()
            if TOKEN.search(text) or (token and token in text):
                raise UserError(f"{path}: it holds what looks like a token (hf_...): take it out, and revoke it")


def check_picture(files: dict[str, Path]) -> None:
    """Raise UserError if the curves cannot be shown."""
    if CURVES in files:
        try:
            with Image.open(files[CURVES]) as picture:
                picture.load()
        except (OSError, SyntaxError) as error:
            raise UserError(
                f"{files[CURVES]}: not a whole picture ({error}); draw it again with modeling_scratch.plots curves"
            ) from None


def check_imports(files: dict[str, Path]) -> None:
    """Raise UserError if code that travels imports more than a stranger has, or than what travels with it."""
    for path in (path for name, path in files.items() if name.endswith(".py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError as error:
            raise UserError(f"{path}: line {error.lineno}: not Python: {error.msg}") from None
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                if f"{node.module}.py" not in files:
                    raise UserError(f"{path}: line {node.lineno} imports .{node.module}, which does not travel with it")
                continue
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                if module.partition(".")[0] not in IMPORTABLE:
                    raise UserError(
                        f"{path}: line {node.lineno} imports {module}; code that travels may import the standard "
                        "library, torch, transformers, huggingface_hub and its neighbours"
                    )


def report_code(files: dict[str, Path]) -> None:
    """Log, before any of it is run, that the folder's code is run, and which files are not as they are installed."""
    code = sorted(name for name in files if name.endswith(".py"))
    installed = {name: Path(configuration_scratch.__file__).with_name(name) for name in code}
    other = [
        name for name, path in installed.items() if not path.is_file() or path.read_bytes() != files[name].read_bytes()
    ]
    logger.info(f"running the folder's own {len(code)} .py files")
    if other:
        logger.warning(
            f"{', '.join(other)}: not as installed with modeling_scratch {__version__}; the check runs the folder's, "
            "and whoever loads the model will: read them"
        )


def check_tokenizers(files: dict[str, Path]) -> None:
    """Raise UserError that names the file, if a tokenizer is damaged."""
    for path in files.values():
        if path.name == "tokenizer.json":
            try:
                Tokenizer.from_file(str(path))
            except Exception as error:  # the library's own class is Exception
                raise UserError(f"{path}: not a tokenizer: {' '.join(str(error).split())}") from None
        if path.name == "tokenizer_config.json":
            try:
                AutoTokenizer.from_pretrained(path.parent, config=PreTrainedConfig(), trust_remote_code=False)
            except Exception as error:  # Transformers has many
                raise UserError(f"{path}: no tokenizer loads by it: {' '.join(str(error).split())}") from None


def check_generation(files: dict[str, Path]) -> None:
    """Raise UserError if the generation config contradicts itself, as an early stop with a single beam."""
    path = files["generation_config.json"]
    settings = read_json(path)
    if wrong := [name for name in GENERATION_NUMBERS if not isinstance(settings.get(name, 0), int | float | None)]:
        raise UserError(f"{path}: {wrong[0]} is {settings[wrong[0]]!r}; it must be a number")
    try:
        GenerationConfig(**settings).validate(strict=True)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None


def expected_positions(length: int, d_model: int) -> torch.Tensor:
    """Section 3.5, element by element: (1, length, d_model)."""
    rows = []
    for position in range(length):
        angles = [position / 10000 ** (2 * (i // 2) / d_model) for i in range(d_model)]
        rows.append([math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(angles)])
    return torch.tensor(rows)[None]


def probe_sentences(folder: Path) -> list[str]:
    """The run's own sample sources, and `PROBES`."""
    samples = folder / "samples.md"
    try:
        lines = samples.read_text(encoding="utf-8").splitlines() if samples.is_file() else []
    except UnicodeDecodeError as error:
        raise UserError(f"{samples}: not valid UTF-8 ({error.reason}); delete it, or score the run again") from None
    own = [line.removeprefix("- source: ") for line in lines if line.startswith("- source: ")]
    return own + PROBES


def observe_as_a_stranger(folder: Path, sentences: list[str]) -> dict[str, Any]:
    """
    `folder_probe.observe` on a folder that holds nothing else, in a process that cannot import this project and makes
    no connections. UserError with its last words if it fails.
    """
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        asked, answered = temporary / "sentences.json", temporary / "observed.pt"
        asked.write_text(json.dumps(sentences), encoding="utf-8")
        secret = ("HF_", "HUGGING", "PYTHON", "TRANSFORMERS_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(secret)}
        environment |= {"HF_HOME": str(temporary / "home"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        command = [sys.executable, "-I", folder_probe.__file__, str(folder), str(asked), str(answered)]
        result = subprocess.run(command, cwd=temporary, env=environment, capture_output=True, text=True)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"a process without this project cannot load the folder: {last}")
        return torch.load(answered, weights_only=True)


SAVE_AGAIN = (
    "the code or the files in the folder are not what this version of modeling_scratch would save; load the model with "
    "it, save it there again, and check again"
)


def compare(author: dict[str, Any], stranger: dict[str, Any], config: ScratchConfig) -> None:
    """Raise UserError where what a stranger sees is not what the author sees, or not what the config says."""
    for who, observed in (("here", author), ("in a clean process", stranger)):
        if observed["loading"]:
            raise UserError(
                f"weights are missing or left over {who}: {', '.join(observed['loading'][:5])}; save the model again"
            )
        for field, tied in observed["tied"].items():
            if tied != getattr(config, field):
                raise UserError(
                    f"config.json: {field} is {getattr(config, field)}, but {who} the weights are "
                    f"{'' if tied else 'not '}one; save the model again"
                )
    if not torch.isfinite(author["logits"]).all():
        raise UserError("the model's logits are not finite: its training has diverged; push an earlier checkpoint")
    differing = [
        name
        for name in ("input_ids", "positions", "translations", "pipeline", "decoded")
        if not _equal(author[name], stranger[name])
    ]
    difference = float("inf")
    if author["logits"].shape == stranger["logits"].shape:
        difference = (author["logits"] - stranger["logits"]).abs().max().item()
    if not difference <= TOLERANCE:
        differing.append(f"logits (by {difference:.1e})")
    if differing:
        raise UserError(f"a clean process without this project gives other {', '.join(differing)}: {SAVE_AGAIN}")
    if config.position_embedding_type == "sinusoidal":
        expected = expected_positions(author["positions"][0].shape[1], config.d_model)
        if not torch.allclose(stranger["positions"][0], expected, rtol=0, atol=1e-6):
            raise UserError(f"the sinusoidal positions are not the paper's: {SAVE_AGAIN}")


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_equal, first, second))
    return first == second


def check_folder(folder: Path, copy: Path) -> list[str]:
    """
    Copy what goes to the Hub, all but the card, to an empty folder, and check it there.

    Returns:
        A line for each thing that was found right.

    Raises:
        UserError: what is wrong, where, and what to do.
    """
    files = copy_files(folder, copy)
    try:
        return _check_files(files, copy, probe_sentences(folder))
    except ValueError as error:  # of the copy nobody knows
        raise UserError(str(error).replace(str(copy), str(folder))) from error


def _check_files(files: dict[str, Path], copy: Path, sentences: list[str]) -> list[str]:
    check_texts(files)
    check_picture(files)
    parameters = check_weights(files)
    check_imports(files)
    check_generation(files)
    check_tokenizers(files)
    config = read_config(copy)
    try:
        author = folder_probe.observe(str(copy), sentences, False, ScratchTranslationPipeline)
    except Exception as error:  # Transformers has many
        raise UserError(f"{copy} cannot be loaded here: {type(error).__name__}: {error}") from error
    report_code(files)
    compare(author, observe_as_a_stranger(copy, sentences), config)
    code, tokenizer = [name for name in files if name.endswith(".py")], "tokenizer_config.json" in files
    return [
        f"weights: safetensors, {parameters:,} numbers, all finite, none missing, tied as the config says",
        f"code: {len(code)} files, which import the standard library, torch, transformers and huggingface_hub",
        "generation config: valid",
        f"a clean process without this project: the same ids, logits (within {TOLERANCE:.0e}), positions and "
        + (
            f"translations of {len(sentences)} sentences"
            if tokenizer
            else "output of random ids; there is no tokenizer"
        ),
    ]
