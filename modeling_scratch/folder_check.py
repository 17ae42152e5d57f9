"""What goes to the Hub from a run's folder, and the check that a stranger who loads it gets what its author has."""

import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_token
from PIL import Image
from safetensors import SafetensorError, safe_open
from transformers import GenerationConfig
from transformers.dynamic_module_utils import get_relative_import_files

from . import folder_probe
from .card_text import TOKEN
from .configuration_scratch import ScratchConfig
from .run_folder import CURVES, RunFolder
from .translation_pipeline import TARGET_FOLDER, ScratchTranslationPipeline

CARD = "README.md"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "spiece.model",
)
# Files by name or pattern; code is chosen by following the imports of what config.json names.
ALLOWED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    *TOKENIZER_FILES,
    *(f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES),
    CURVES,
)
IMPORTABLE = {"torch", "transformers", "huggingface_hub"} | sys.stdlib_module_names
TOLERANCE = 1e-6  # of logits in float32: the same code on the same machine

# Besides the run's own samples: what a tokenizer can stumble over.
PROBES = ["Hello, world!", "Grüße aus Köln, naïve café.", "3.14 = 22/7?", "日本語 🙂", "<s> </s> <pad>", "a"]


def code_files(folder: Path, config: dict[str, Any]) -> list[Path]:
    """The Python files that config.json's auto_map and custom_pipelines name, and all that these import."""
    given = [*(config.get("auto_map") or {}).values()]
    given += [pipeline.get("impl") for pipeline in (config.get("custom_pipelines") or {}).values()]
    # A tokenizer's entry is a list: the slow one and the fast one.
    references = [each for entry in given for each in (entry if isinstance(entry, list) else [entry]) if each]
    roots = {folder / f"{reference.rpartition('--')[2].partition('.')[0]}.py" for reference in references}
    files = set(roots)
    for root in roots:
        if not root.is_file():
            raise ValueError(f"{folder}: config.json names {root.name}, which is missing; save the model again")
        try:
            files |= {Path(file) for file in get_relative_import_files(root)}
        except FileNotFoundError as error:
            name = Path(error.filename).name
            raise ValueError(f"{folder}: {name} is imported but missing; save the model again") from None
    return sorted(files)


def chosen_files(folder: Path) -> dict[str, Path]:
    """
    What goes to the Hub, card excepted: {path in the repository: file}. Chosen by an allow-list, so that optimizer
    states, logs, environment files and pickles stay.

    Raises:
        ValueError: the folder is not a run, or a file that a model needs is missing.
    """
    if not RunFolder(folder).is_run():
        raise ValueError(f"{folder} is not a run's folder: train.py makes one, with its recipe.yaml")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    chosen = {name: folder / name for name in names if any(fnmatch(name, pattern) for pattern in ALLOWED)}
    # A single file wins over shards of an earlier save.
    if "model.safetensors" in chosen:
        chosen = {name: path for name, path in chosen.items() if not re.match(r"model-|model\.safetensors\.", name)}
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if name not in chosen:
            raise ValueError(f"{folder}: {name} is missing; the run has not been saved whole")
    if not any(name.endswith(".safetensors") for name in chosen):
        raise ValueError(f"{folder}: there are no weights (model.safetensors); has the run finished an evaluation?")
    config = read_json(chosen["config.json"])
    return chosen | {path.name: path for path in code_files(folder, config)}


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, found {type(content).__name__}")
    return content


def check_weights(files: dict[str, Path]) -> int:
    """Raise ValueError if a weight file cannot be read or holds a number that is not finite. Returns the parameters."""
    count = 0
    for path in (path for name, path in files.items() if name.endswith(".safetensors")):
        try:
            with safe_open(path, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118
                    tensor = weights.get_tensor(name)
                    count += tensor.numel()
                    if not torch.isfinite(tensor).all():
                        raise ValueError(f"{path}: {name} holds NaN or infinite values; push an earlier checkpoint")
        except SafetensorError as error:
            raise ValueError(f"{path}: cannot be read as safetensors, perhaps it is truncated ({error})") from None
    return count


def check_texts(files: dict[str, Path]) -> None:
    """Raise ValueError for a text file that is damaged, or that holds what looks like a token."""
    for name, path in files.items():
        if name.endswith(".json"):
            read_json(path)
        if path.suffix not in (".safetensors", ".png", ".spm", ".model"):
            text = path.read_bytes().decode("utf-8", errors="replace")
            token = get_token()
            if TOKEN.search(text) or (token and token in text):
                raise ValueError(f"{path}: it holds what looks like a token (hf_...): take it out, and revoke it")


def check_picture(files: dict[str, Path]) -> None:
    """Raise ValueError if the curves cannot be shown."""
    if CURVES in files:
        try:
            with Image.open(files[CURVES]) as picture:
                picture.load()
        except (OSError, SyntaxError) as error:
            raise ValueError(
                f"{files[CURVES]}: not a whole picture ({error}); draw it again with modeling_scratch.plots curves"
            ) from None


def check_imports(files: dict[str, Path]) -> None:
    """Raise ValueError if code that travels imports more than a stranger has, or than what travels with it."""
    for path in (path for name, path in files.items() if name.endswith(".py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError as error:
            raise ValueError(f"{path}: line {error.lineno}: not Python: {error.msg}") from None
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                if f"{node.module}.py" not in files:
                    raise ValueError(
                        f"{path}: line {node.lineno} imports .{node.module}, which does not travel with it"
                    )
                continue
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                if module.partition(".")[0] not in IMPORTABLE:
                    raise ValueError(
                        f"{path}: line {node.lineno} imports {module}; code that travels may import the standard "
                        "library, torch, transformers, huggingface_hub and its neighbours"
                    )


def check_generation(files: dict[str, Path]) -> None:
    """Raise ValueError if the generation config contradicts itself, as an early stop with a single beam."""
    path = files["generation_config.json"]
    try:
        GenerationConfig(**read_json(path)).validate(strict=True)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


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
        raise ValueError(f"{samples}: not valid UTF-8 ({error.reason}); delete it, or score the run again") from None
    own = [line.removeprefix("- source: ") for line in lines if line.startswith("- source: ")]
    return own + PROBES


def observe_as_a_stranger(folder: Path, sentences: list[str]) -> dict[str, Any]:
    """
    `folder_probe.observe` on a folder that holds nothing else, in a process that cannot import this project and makes
    no connections. ValueError with its last words if it fails.
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
            raise ValueError(f"a process without this project cannot load the folder: {last}")
        return torch.load(answered, weights_only=True)


SAVE_AGAIN = (
    "the code or the files in the folder are not what this version of modeling_scratch would save; load the model with "
    "it, save it there again, and check again"
)


def compare(author: dict[str, Any], stranger: dict[str, Any], config: ScratchConfig) -> None:
    """Raise ValueError where what a stranger sees is not what the author sees, or not what the config says."""
    for who, observed in (("here", author), ("in a clean process", stranger)):
        if observed["loading"]:
            raise ValueError(
                f"weights are missing or left over {who}: {', '.join(observed['loading'][:5])}; save the model again"
            )
        for field, tied in observed["tied"].items():
            if tied != getattr(config, field):
                raise ValueError(
                    f"config.json: {field} is {getattr(config, field)}, but {who} the weights are "
                    f"{'' if tied else 'not '}one; save the model again"
                )
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
        raise ValueError(f"a clean process without this project gives other {', '.join(differing)}: {SAVE_AGAIN}")
    if config.position_embedding_type == "sinusoidal":
        expected = expected_positions(author["positions"][0].shape[1], config.d_model)
        if not torch.allclose(stranger["positions"][0], expected, rtol=0, atol=1e-6):
            raise ValueError(f"the sinusoidal positions are not the paper's: {SAVE_AGAIN}")


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_equal, first, second))
    return first == second


def copy_files(folder: Path, copy: Path) -> dict[str, Path]:
    """Copy what goes to the Hub, card excepted, to an empty folder: {path in the repository: copied file}."""
    files = {name: copy / name for name in chosen_files(folder)}
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, path)
    return files


def check_folder(folder: Path, copy: Path) -> list[str]:
    """
    Copy what goes to the Hub, all but the card, to an empty folder, and check it there.

    Returns:
        A line for each thing that was found right.

    Raises:
        ValueError: what is wrong, where, and what to do.
    """
    files = copy_files(folder, copy)
    try:
        return _check_files(files, copy, probe_sentences(folder))
    except ValueError as error:  # of the copy nobody knows
        raise ValueError(str(error).replace(str(copy), str(folder))) from error


def _check_files(files: dict[str, Path], copy: Path, sentences: list[str]) -> list[str]:
    check_texts(files)
    check_picture(files)
    parameters = check_weights(files)
    check_imports(files)
    check_generation(files)
    try:
        config = ScratchConfig.from_pretrained(copy)
        author = folder_probe.observe(str(copy), sentences, False, ScratchTranslationPipeline)
    except Exception as error:  # Transformers has many
        raise ValueError(f"{copy} cannot be loaded here: {type(error).__name__}: {error}") from error
    compare(author, observe_as_a_stranger(copy, sentences), config)
    code = [name for name in files if name.endswith(".py")]
    return [
        f"weights: safetensors, {parameters:,} numbers, all finite, none missing, tied as the config says",
        f"code: {len(code)} files, which import the standard library, torch, transformers and huggingface_hub",
        "generation config: valid",
        f"a clean process without this project: the same ids, logits (within {TOLERANCE:.0e}), positions and "
        f"translations of {len(sentences)} sentences",
    ]
