"""A run's records, which are the rows of metrics.jsonl, and its translations: to write them and to read them."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id, yaml_dump

from ..data.sources import Provenance, file_name, local_provenance, mixed_sources, source_of
from ..errors import UserError, without_tokens
from ..files import reading, write_lines, write_whole
from ..metrics import rank
from ..recipe.reading import load_recipe

RECIPE, METRICS_FILE = "recipe.yaml", "metrics.jsonl"  # in a run's folder
TRANSLATIONS = "translations"  # a folder, or a link to one on another disk
BEFORE = "before"  # the split of the records before fine-tuning, and the folder of these translations
_ROWS = 20  # the most in a table of evaluations, not counting the best


# -- metrics.jsonl -----------------------------------------------------------------------------------------------------


def append_record(run: Path, record: dict[str, Any]) -> None:
    """Append a record as one line."""
    with (run / METRICS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """
    The records of a run; none if it has not written any. A last line without a line feed was cut off by an interrupt,
    and is ignored. Raises UserError if the file is damaged.
    """
    path = run / METRICS_FILE
    if not path.is_file():
        return []
    records = []
    with reading(path):
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    for number, line in enumerate(lines, start=1):
        with reading(path, f"line {number} is damaged; delete it: "):
            records.append(json.loads(line))
            records[-1]["split"], records[-1]["step"]
    return records


def scored_set(record: dict[str, Any]) -> str:
    """The name of the split or further test set that a record's scores are for."""
    return record.get("name") or record["split"]


def finally_scored(run: Path) -> dict[str, dict[str, Any]]:
    """The last record of each set that a run has scored with its final weights, by its name; none if there are none."""
    return {scored_set(record): record for record in read_metrics(run) if record.get("final")}


def forget_after(run: Path, step: int, completed_step: int) -> None:
    """
    Drop what a resumed run writes again: final records, records of updates after `step`, and evaluations and others
    after `completed_step`.
    """
    kept = [
        record
        for record in read_metrics(run)
        if "final" not in record and record["step"] <= (step if record["split"] == "train" else completed_step)
    ]
    write_whole(run / METRICS_FILE, "".join(json.dumps(record) + "\n" for record in kept))


# -- translations ------------------------------------------------------------------------------------------------------


def write_translations(run: Path, name: str, translations: Sequence[str]) -> None:
    """Write the translations of a split or further test set, one a line, replacing earlier ones."""
    path = run / TRANSLATIONS / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, translations)


def read_translations(run: Path, name: str) -> list[str]:
    """
    The translations of a split or test set, in the order of its sentences.

    Raises:
        UserError: there are none, or the file is not UTF-8.
    """
    path = run / TRANSLATIONS / f"{name}.txt"
    with reading(path):
        text = path.read_bytes().decode("utf-8")
    return text.removesuffix("\n").split("\n") if text else []


# -- a whole run -------------------------------------------------------------------------------------------------------


class RunRecords:
    """
    The records of a run. Raises UserError if there are none, or what it needs is missing.

    Args:
        going_on: whether the run may still be training: its last record may be cut off, and nothing evaluated yet.
    """

    def __init__(self, folder: Path, going_on: bool = False):
        self.folder, self.recipe = folder, load_recipe(folder / RECIPE)
        records = read_metrics(folder)
        if not records:
            raise UserError(f"{folder / METRICS_FILE}: no records yet")
        if not going_on and not (folder / METRICS_FILE).read_bytes().endswith(b"\n"):
            raise UserError(
                f"{folder / METRICS_FILE}: the last record is cut off; scratch train --resume scores the run again"
            )
        # The last one of each test set; the recipe's own has no name.
        final = {(record["split"], record.get("name")): record for record in records if record.get("final")}
        self.finished = bool(final)
        self.scored = list(final.values()) if final else self._best(records, going_on)
        self.records, self.updates = records, records[-1]["step"]
        self.evaluations = self._evaluations(records)
        self.train, self.machine = _last(records, "train"), _last(records, "run")
        self.samples = _samples_in(records)
        data = self.recipe.data
        self.tags = [tag.strip().replace("_", "-") for tag in data.languages or ()]

    def _rank(self, record: dict[str, Any]) -> tuple[float, float]:
        """An evaluation's rank by the recipe's metric: lower is better."""
        metric = self.recipe.evaluation.metric
        return rank(record, metric) if metric in record else (math.inf, math.inf)

    def _best(self, records: list[dict[str, Any]], may_lack: bool) -> list[dict[str, Any]]:
        """An unfinished run's best evaluation, whose weights are at the folder's root; empty only if `may_lack`."""
        metric = self.recipe.evaluation.metric
        evaluations = [record for record in records if record["split"] == "validation" and metric in record]
        if not evaluations and not may_lack:
            raise UserError(f"{self.folder / METRICS_FILE}: no evaluation yet, so there are no scores to show")
        return [min(evaluations, key=self._rank)] if evaluations else []

    def _evaluations(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """
        The evaluations during training, with `train_loss`, the last training cross-entropy logged before each. Long
        lists are thinned evenly; the best and the last evaluation stay.
        """
        found, train_loss = [], None
        for record in records:
            if record["split"] == "train":
                train_loss = record.get("cross_entropy", train_loss)
            elif record["split"] == "validation" and not record.get("final"):
                found.append(record | {"train_loss": train_loss})
        every = math.ceil(len(found) / _ROWS)
        best, last = min(found, key=self._rank, default=None), len(found) - 1
        return [record for place, record in enumerate(found) if (last - place) % every == 0 or record is best]

    def _is_on_hub(self, name: str) -> bool:
        """Whether a name is that of a repository, by the rule of Transformers: a folder of that name comes first."""
        try:
            validate_repo_id(name)
        except HFValidationError:
            return False
        return not Path(name).exists()

    @property
    def base_model(self) -> str | None:
        """The Hub model that the run started from; always user/name, since no `scratch` model has a bare name."""
        name = self.recipe.model.start_from
        return name if name and "/" in name and self._is_on_hub(name) else None

    def provenance(self, split: str = "train") -> Provenance:
        """Where the pairs of a split come from, or the training pairs that it was held out of."""
        recipe = self.recipe
        if (source := source_of(split, recipe.data, recipe.seed)) is not None:
            return self._known(source.provenance())
        return replace(self._known(source_of("train", recipe.data, recipe.seed).provenance()), split=None)

    def _known(self, found: Provenance) -> Provenance:
        """The provenance unchanged if the data set is on the Hub, else as local data."""
        if found.hub_name is not None and not self._is_on_hub(found.hub_name):
            return local_provenance([found.hub_name])
        return found

    def mixed(self) -> list[Provenance]:
        """Where the further training pairs of `data.mix` come from."""
        data = self.recipe.data
        return [self._known(source.provenance()) for source in mixed_sources(data, self.recipe.seed)]

    def shown_recipe(self) -> str:
        """The recipe as YAML, without its `hub` section, tokens and the folders of the machine that it ran on."""
        content = self._shown(self.recipe.model_dump(mode="json", exclude={"hub"}), "")
        return without_tokens(yaml_dump(content, sort_keys=False, width=math.inf).strip())

    def _shown(self, value: Any, key: str) -> Any:
        """A value of the recipe, at or in the list or the test sets at `key`, without folders."""
        if isinstance(value, dict):
            return {name: self._shown(item, key if key == "test_sets" else name) for name, item in value.items()}
        if isinstance(value, list):
            return [self._shown(item, key) for item in value]
        if not isinstance(value, str):
            return value
        if key in ("name", "start_from", "existing"):
            return self.shown_name(value)
        is_path = key in ("output_dir", "config", "files", "test_sets") or key.endswith("_files")
        return file_name(value) if is_path else value

    def shown_name(self, name: str) -> str:
        """A repository's name, or the last part of a local path."""
        return name if self._is_on_hub(name) else file_name(name)


def _last(records: list[dict[str, Any]], split: str) -> dict[str, Any]:
    """The last record of a split; {} if there is none."""
    return next((record for record in reversed(records) if record["split"] == split), {})


def _samples_in(records: list[dict[str, Any]]) -> list[dict[str, str]]:
    """
    {source, reference, translation}, and features if the data have any, of each sample that was recorded with the final
    scores; [] before.
    """
    samples: list[dict[str, str]] = next((record["samples"] for record in reversed(records) if "samples" in record), [])
    return [{field: without_tokens(text.strip()) for field, text in sample.items()} for sample in samples]


def run_of(folder: Path) -> RunRecords | None:
    """The records of the run whose folder this is; None for any other model. Raises the errors of `RunRecords`."""
    return RunRecords(folder) if (folder / RECIPE).is_file() else None
