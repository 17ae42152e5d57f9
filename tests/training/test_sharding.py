"""
FSDP2 by Accelerate's own `prepare`, as configuration/accelerate/fsdp.yaml has it, on gloo's processes: what is sharded
trains as what is not, and each goes on with what the other has left.
"""

import json
import shutil
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL_RUN, read_metrics, run_command
from safetensors.torch import load_file

from modeling_scratch import ScratchForConditionalGeneration

RUN = [*SMALL_RUN, "model.overrides.dropout=0.0", "evaluation.max_new_tokens=2", "evaluation.every=1000"]
FSDP = ["fsdp.yaml"]
HYBRID = ["hsdp.yaml", "--num_machines", "1", "--parallelism_config_dp_replicate_size", "2"]
HYBRID += ["--parallelism_config_dp_shard_size", "2"]


def run_all(processes: int, runs: list[dict], folder: Path, launcher: list[str] = FSDP) -> str:
    """Runs one after another on so many processes of one launcher; what they said."""
    (folder / "runs.json").write_text(json.dumps(runs))
    script = [str(ROOT / "tests" / "train_on_processes.py"), str(folder / "runs.json")]
    config, *options = launcher
    launch = ["-m", "accelerate.commands.launch", "--config_file", f"configuration/accelerate/{config}", *options]
    launch += ["--num_processes", str(processes), "--main_process_port", "0"]
    result = run_command(*([] if processes == 1 else launch), *script)
    assert result.returncode == 0, result.stderr
    return result.stderr


def train_losses(run: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in read_metrics(run, "train")}


TYINGS = {
    "all tied": [],
    "head tied to the decoder's": ["tokenizer.shared=false"],
    "embeddings shared": ["model.overrides.tie_word_embeddings=false"],
    "nothing tied": ["tokenizer.shared=false", "model.overrides.tie_word_embeddings=false"],
}


def test_sharded_training_is_that_of_one_process(tmp_path):
    """In float64 without dropout, for all ways of tying; the first one through 50 updates."""
    runs, folder = {1: [], 2: []}, {}
    for number, options in enumerate(TYINGS.values()):
        steps = f"optimization.max_steps={5 if number else 50}"
        averaging = ["checkpoints.average_last=2", f"checkpoints.every={2 if number else 20}"]
        for processes, several in runs.items():
            folder[processes, number] = tmp_path / f"{processes}-{number}"
            overrides = [*RUN, *options, *averaging, steps, f"output_dir={folder[processes, number]}"]
            several.append({"overrides": overrides, "float64": True, "sharded": processes > 1})
    for processes, several in runs.items():
        run_all(processes, several, tmp_path)
    for number in range(len(TYINGS)):
        one, two = (train_losses(folder[processes, number]) for processes in (1, 2))
        assert list(one) == list(two) == list(range(1, 6 if number else 51))
        assert list(two.values()) == pytest.approx(list(one.values()), abs=1e-9)
        weights = [load_file(folder[processes, number] / "model.safetensors") for processes in (1, 2)]
        torch.testing.assert_close(weights[1], weights[0], atol=1e-9, rtol=0)
        for split in ("validation", "test"):  # in the end of the average, whose weights each process has its part of
            records = [read_metrics(folder[processes, number], split) for processes in (1, 2)]
            assert records[0][-1]["final"]
            for one, two in zip(*records, strict=True):
                assert one.get("loss") == pytest.approx(two.get("loss"), abs=1e-9)
                assert (one["bleu"], one["chrf"]) == (two["bleu"], two["chrf"])


# Loads a folder where this package is not to be had, and prints the logits of some tokens.
STRANGER = """
import json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "modeling_scratch": raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
ids = torch.arange(4, 10)[None]
for folder in sys.argv[1:]:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        print(json.dumps(model(input_ids=ids, decoder_input_ids=ids).logits.tolist()))
"""


def test_a_sharded_run_in_bf16_leaves_models(tmp_path):
    """
    With accumulation, averaging, translations whose batches the processes cannot share evenly, and losses that are not
    rounded to bf16; resumed, and stopped before.
    """
    run = tmp_path / "run"
    overrides = [*RUN, "optimization.gradient_accumulation_steps=2", "checkpoints.every=5", "evaluation.batch_size=200"]
    overrides += ["checkpoints.average_last=2", "evaluation.every=5", f"output_dir={run}"]
    first = {"overrides": [*overrides, "optimization.max_steps=10"], "precision": "bf16"}
    more = {"overrides": [*overrides, "optimization.max_steps=15"], "precision": "bf16", "resume": True}
    said = run_all(2, [first, more], tmp_path)
    assert f"resuming from {run / 'checkpoints' / 'step-0000010'}" in said
    assert "its dropout does not" not in said
    losses = train_losses(run)
    assert list(losses) == list(range(1, 16))
    assert losses[15] < losses[1]
    folders = [run, run / "checkpoints" / "step-0000015"]
    found = run_command("-c", STRANGER, *map(str, folders), PYTHONPATH="")
    assert found.returncode == 0, found.stderr
    ids = torch.arange(4, 10)[None]
    for folder, printed in zip(folders, found.stdout.splitlines(), strict=True):
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["ScratchForConditionalGeneration"]
        with torch.no_grad():
            expected = ScratchForConditionalGeneration.from_pretrained(folder).eval()(ids, decoder_input_ids=ids).logits
        torch.testing.assert_close(torch.tensor(json.loads(printed)), expected, atol=1e-6, rtol=0)


@dataclass
class Kind:
    """How a run is spread."""

    processes: int
    sharded: bool = False
    launcher: list[str] = field(default_factory=lambda: FSDP)


KINDS = {
    "1": Kind(1),
    "2": Kind(2),
    "2 sharded": Kind(2, True),
    "4": Kind(4),
    "4 sharded": Kind(4, True),
    "4 sharded by two": Kind(4, True, HYBRID),
}


def check_resuming(kinds: list[str], pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    """Runs of `kinds`, and what goes on from their middle as another kind, make the updates of one process."""

    def run_by_launcher(jobs: list[tuple[str, Path]], **options) -> None:
        for (processes, launcher), mine in groupby(
            sorted(jobs, key=lambda job: by_launcher(job[0])), key=lambda job: by_launcher(job[0])
        ):
            runs = [
                {
                    "overrides": [*RUN, f"output_dir={folder}"],
                    "sharded": KINDS[kind].sharded,
                    "float64": True,
                    **options,
                }
                for kind, folder in mine
            ]
            run_all(processes, runs, tmp_path, launcher)

    def by_launcher(kind: str) -> tuple[int, list[str]]:
        return KINDS[kind].processes, KINDS[kind].launcher

    run_by_launcher([(kind, tmp_path / kind) for kind in kinds])
    expected = train_losses(tmp_path / kinds[0])
    for kind in kinds:
        assert list(train_losses(tmp_path / kind).values()) == pytest.approx(list(expected.values()), abs=1e-9), kind
    resumed = []
    for begun, goes_on in pairs:
        folder = tmp_path / f"{begun} to {goes_on}"
        shutil.copytree(tmp_path / begun, folder)
        resumed.append((goes_on, folder))
    run_by_launcher(resumed, resume_from="step-0000010")
    weights = load_file(tmp_path / kinds[0] / "model.safetensors")
    for _, folder in resumed:
        found = train_losses(folder)
        assert list(found) == list(range(1, 21))
        assert list(found.values()) == pytest.approx(list(expected.values()), abs=1e-9), folder.name
        torch.testing.assert_close(load_file(folder / "model.safetensors"), weights, atol=1e-9, rtol=0)


def test_sharded_runs_go_on_whole_and_whole_runs_sharded(tmp_path):
    pairs = [("1", "2 sharded"), ("2 sharded", "1"), ("2 sharded", "2"), ("2 sharded", "2 sharded")]
    check_resuming(["1", "2 sharded"], pairs, tmp_path)


@pytest.mark.slow
def test_every_kind_of_run_goes_on_as_every_other(tmp_path):
    check_resuming(list(KINDS), [(begun, goes_on) for begun in KINDS for goes_on in KINDS], tmp_path)


@pytest.mark.slow
def test_compiled_layers_are_sharded_and_spread_as_others(tmp_path):
    """In float32: compiled or not, sharded or not, two processes make nearly the same updates."""
    runs = [
        {"overrides": [*RUN, f"compile={compiled}", f"output_dir={tmp_path / name}"], "sharded": name == "sharded"}
        for name, compiled in (("eager", "false"), ("sharded", "true"), ("spread", "true"))
    ]
    run_all(2, runs, tmp_path)
    eager = train_losses(tmp_path / "eager")
    for name in ("sharded", "spread"):
        assert list(train_losses(tmp_path / name).values()) == pytest.approx(list(eager.values()), abs=1e-4)
        weights = [load_file(tmp_path / run / "model.safetensors") for run in ("eager", name)]
        assert set(weights[0]) == set(weights[1])


# -- float16 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_gradient_scaler_recovers_and_resumes(processes, tmp_path):
    """
    From a scale by which the gradients overflow, on one process and sharded on two: updates are skipped until it has
    come down, and a run that is resumed goes on with its scale.
    """
    run = {"sharded": processes > 1, "precision": "fp16", "scale": 2.0**24}
    run["overrides"] = [*RUN, "checkpoints.every=5", f"output_dir={tmp_path / 'run'}"]
    seen = []
    for resumed in ({}, {"resume_from": "step-0000010"}):
        run_all(processes, [run | resumed], tmp_path)
        names = ("step", "loss", "nonfinite_updates")
        records = [[record.get(name) for name in names] for record in read_metrics(tmp_path / "run", "train")]
        seen.append((records, (tmp_path / "run" / "model.safetensors").read_bytes()))
    assert seen[0] == seen[1]
    assert 0 < records[-1][2] < 10
    assert records[-1][1] < records[10][1]
