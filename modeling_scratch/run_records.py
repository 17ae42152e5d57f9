"""What a run's folder says of itself, for the model's card."""

import json
import math
import re
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open

from .card_text import TOKEN, language_code
from .configuration_scratch import ScratchConfig
from .plots import read_metrics
from .recipe import EMBEDDED_CORPUS, load_recipe
from .run_folder import METRICS, RECIPE, SAMPLES, WEIGHTS
from .translation_pipeline import TARGET_FOLDER

_LOCAL_PATH = re.compile(r"/|~|\.{1,2}(?:[/\\]|$)|[A-Za-z]:[/\\]|\\\\|file:")


class RunRecords:
    """The records of a run. ValueError if one is missing or damaged."""

    def __init__(self, folder: Path):
        self.folder, self.recipe = folder, load_recipe(folder / RECIPE)
        config = _read_json(folder / "config.json")
        self.config = ScratchConfig.from_dict(config)
        self.pipeline = "translation" in (config.get("custom_pipelines") or {})
        self.generation = _read_json(folder / "generation_config.json")
        self.parameters, self.dtypes = _count_parameters(folder / WEIGHTS)
        self.two_vocabularies = (folder / TARGET_FOLDER).is_dir()
        records = read_metrics(folder)
        if not (folder / METRICS).read_bytes().endswith(b"\n"):
            raise ValueError(f"{folder / METRICS}: the last record is cut off; train.py --resume scores the run again")
        final = {record["split"]: record for record in records if record.get("final")}
        self.finished = bool(final)
        self.scored = list(final.values()) if final else [self._best(records)]
        self.train = next((record for record in reversed(records) if record["split"] == "train"), {})
        self.machine = next((record for record in reversed(records) if record["split"] == "run"), {})
        # Written when a run ends: what a run that goes on has is of an earlier end.
        self.samples = _read_samples(folder / SAMPLES) if final else []
        data = self.recipe.data
        self.tags = [tag.strip().replace("_", "-") for tag in (data.source_language, data.target_language)]
        codes = [language_code(tag) for tag in self.tags]
        self.languages = list(dict.fromkeys(codes)) if all(codes) else []
        self.embedded = data.name == EMBEDDED_CORPUS
        self.local = any([data.train_files, data.validation_files, data.test_files])
        if not self.local and not self.embedded:
            self.local = not self._is_on_hub(data.name)

    def _best(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        """The evaluation of a run that goes on whose weights are at the folder's root."""
        metric = self.recipe.evaluation.metric
        judged = [record for record in records if record["split"] == "validation" and metric in record]
        if not judged:
            raise ValueError(f"{self.folder / METRICS}: no evaluation yet, so that there is nothing to say in a card")
        return min(judged, key=lambda record: record[metric] if metric == "loss" else -record[metric])

    def _is_on_hub(self, name: str) -> bool:
        """Whether a name is a repository's, and not that of a folder that was there when the run was made."""
        parts = PurePath(self.recipe.output_dir).parts
        above = self.folder.resolve().parents
        started_in = above[min(len(parts), len(above)) - 1]  # the folder that a relative output_dir was in
        if _LOCAL_PATH.match(name) or any((root / name).exists() for root in (Path(), started_in)):
            return False
        if "/" in name and name.split("/")[0] in parts[:-1]:  # runs/first, of a run in runs/second
            return False
        try:
            validate_repo_id(name)
        except HFValidationError:
            return False
        return True

    @property
    def base_model(self) -> str | None:
        """The model on the Hub that the run started from; user/name, since nobody has a `scratch` model without one."""
        name = self.recipe.model.start_from
        return name if name and "/" in name and self._is_on_hub(name) else None

    @property
    def dataset(self) -> str | None:
        return None if self.local or self.embedded else self.recipe.data.name

    def file_names(self, split: str) -> str:
        """A split's local files, without their folders."""
        data = self.recipe.data
        files = getattr(data, f"{split}_files") or data.train_files or data.name
        return ", ".join(map(_file_name, [files] if isinstance(files, str) else files))

    def shown_recipe(self) -> dict[str, Any]:
        """What made the model, without the folders of the machine that it was made on."""
        content = self.recipe.model_dump(mode="json")
        content.pop("hub", None)
        content["output_dir"] = _file_name(content["output_dir"])
        for key, files in content["data"].items():
            if key.endswith("_files") and files:
                content["data"][key] = list(map(_file_name, files)) if isinstance(files, list) else _file_name(files)
        return without_folders(content)


def _file_name(path: str) -> str:
    return TOKEN.sub("hf_...", PureWindowsPath(path).name)  # parted at / and \


def without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    if isinstance(value, str):
        return _file_name(value) if _LOCAL_PATH.match(value) else TOKEN.sub("hf_...", value)
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; the card is made from it") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, found {type(content).__name__}")
    return content


def _count_parameters(path: Path) -> tuple[int, list[str]]:
    """From a safetensors file's header: the numbers in it (tied weights are there once), and their types."""
    try:
        with safe_open(path, framework="pt") as weights:
            tensors = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118
            return sum(math.prod(each.get_shape()) for each in tensors), sorted({each.get_dtype() for each in tensors})
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; the card is made from it") from None
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be read as safetensors, perhaps it is truncated ({error})") from None


def _read_samples(path: Path) -> list[dict[str, str]]:
    """{source, reference, translation} of each sample; a text may have several lines."""
    samples: list[dict[str, str]] = []
    field = None
    for line in path.read_text(encoding="utf-8").split("\n") if path.is_file() else []:
        start = re.match(r"(?:- (source)|  (reference|translation)): ?", line)
        if start and (start[1] or samples):
            field = start[1] or start[2]
            samples += [{}] if start[1] else []
            samples[-1][field] = line[start.end() :]
        elif field:
            samples[-1][field] += "\n" + line
    return [{field: TOKEN.sub("hf_...", text.strip()) for field, text in sample.items()} for sample in samples]
