"""
Sharded training (FSDP2, as configuration/accelerate/fsdp.yaml sets it) on gloo makes the updates of one process, and
each kind of run resumes the others.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import SMALL_RUN, few_sentences, read_metrics, train_losses
from forked import launcher_environment, run_group
from safetensors.torch import load_file
from train_on_processes import train_all
from transformers import AutoModelForSeq2SeqLM

RUN = [*SMALL_RUN, "model.overrides.dropout=0.0", "evaluation.max_new_tokens=2", "evaluation.every=1000"]
RUN += ["optimization.max_steps=6", "checkpoints.every=3"]
FIFTY = ["optimization.max_steps=50", "checkpoints.every=25"]
AVERAGED = [*RUN, "checkpoints.average_last=2"]
FSDP = ["--config_file", "configuration/accelerate/fsdp.yaml"]
HYBRID = ["--config_file", "configuration/accelerate/hsdp.yaml", "--num_machines", "1"]
HYBRID += ["--parallelism_config_dp_replicate_size", "2", "--parallelism_config_dp_shard_size", "2"]


@dataclass(frozen=True)
class Kind:
    """How a run is distributed."""

    processes: int
    sharded: bool = False
    hybrid: bool = False


KINDS = {
    "1": Kind(1),
    "1 sharded": Kind(1, True),
    "2": Kind(2),
    "2 sharded": Kind(2, True),
    "4": Kind(4),
    "4 sharded": Kind(4, True),
    "4 sharded by two": Kind(4, True, True),
}


def run_all(folder: Path, runs: list[tuple[str, dict]], **options) -> str:
    """Train runs of the given kinds, and return their output. Runs with as many processes share them, for speed."""
    groups: dict[tuple, list[dict]] = {}
    for number, (kind, run) in enumerate(runs):
        processes, hybrid = KINDS[kind].processes, KINDS[kind].hybrid
        # A hybrid run has more Gloo groups, and ending them before another run starts can hang. One sharded process
        # has a group, and one that is not sharded has none.
        alone = number if hybrid or (processes == 1 and KINDS[kind].sharded) else None
        several = groups.setdefault((processes, hybrid, alone), [])
        overrides = [*few_sentences(), *run["overrides"]]
        several.append({**run, "overrides": overrides, "sharded": KINDS[kind].sharded, **options})
    output = ""
    for (processes, hybrid, alone), several in groups.items():
        launcher = [*(HYBRID if hybrid else FSDP), "--num_processes", str(processes)]
        environment = launcher_environment(*launcher) if processes > 1 or alone is not None else {}
        if processes == 1 and alone is not None:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0"}
            environment |= {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        output += run_group(folder, processes, train_all, several, **environment)
    return output


# -- in float64, without dropout ---------------------------------------------------------------------------------------

FAST_TYINGS = {
    "all tied": [],
    "nothing tied": [
        "tokenizer.shared=false",
        "model.overrides.tie_word_embeddings=false",
        "optimization.optimizer=muon",
    ],
}
OTHER_TYINGS = {
    "head tied to the decoder's": ["tokenizer.shared=false"],
    "embeddings shared": ["model.overrides.tie_word_embeddings=false"],
}


@pytest.fixture(scope="module")
def trained_as(tmp_path_factory) -> Path:
    return train_tied(tmp_path_factory.mktemp("runs"), FAST_TYINGS)


def train_tied(folder: Path, tyings: dict[str, list[str]]) -> Path:
    """Train one process and two sharded ones for each way of tying weights, into `folder/KIND/TYING`."""
    runs = []
    for kind in ("1", "2 sharded"):
        for tying, options in tyings.items():
            overrides = [*AVERAGED, *options, f"output_dir={folder / kind / tying}"]
            runs.append((kind, {"overrides": overrides}))
    run_all(folder, runs, float64=True)
    return folder


@pytest.mark.parametrize("tying", FAST_TYINGS)
def test_sharded_training_makes_the_updates_of_one_process(tying, trained_as):
    """The final average, of which each process has a part, also has the same scores."""
    check_tied(trained_as, tying)


@pytest.mark.slow
def test_fifty_sharded_updates_with_four_ways_of_tying(tmp_path):
    tyings = FAST_TYINGS | OTHER_TYINGS
    train_tied(tmp_path, {name: [*options, *FIFTY] for name, options in tyings.items()})
    for tying in tyings:
        check_tied(tmp_path, tying, updates=50)


def check_tied(folder: Path, tying: str, updates: int = 6) -> None:
    one, two = folder / "1" / tying, folder / "2 sharded" / tying
    assert len(train_losses(one)) == updates
    assert train_losses(two) == pytest.approx(train_losses(one), abs=1e-9)
    torch.testing.assert_close(
        load_file(two / "model.safetensors"), load_file(one / "model.safetensors"), atol=1e-9, rtol=0
    )
    for split in ("validation", "test"):
        expected, found = read_metrics(one, split), read_metrics(two, split)
        assert expected[-1]["final"]
        for record, other in zip(expected, found, strict=True):
            assert record.get("loss") == pytest.approx(other.get("loss"), abs=1e-9)
            assert (record["bleu"], record["chrf"]) == (other["bleu"], other["chrf"])


def check_resuming(whole: dict[str, Path], pairs: list[tuple[str, str]], folder: Path) -> None:
    """Resume runs of one kind from the middle as another kind, and compare them with one process."""
    runs = []
    for begun, resumed in pairs:
        shutil.copytree(whole[begun], folder / f"{begun} to {resumed}")
        overrides = [*AVERAGED, f"output_dir={folder / f'{begun} to {resumed}'}"]
        runs.append((resumed, {"overrides": overrides, "resume_from": "step-0000003"}))
    run_all(folder, runs, float64=True)
    weights = load_file(whole["1"] / "model.safetensors")
    for begun, resumed in pairs:
        found = folder / f"{begun} to {resumed}"
        assert train_losses(found) == pytest.approx(train_losses(whole["1"]), abs=1e-9), found.name
        torch.testing.assert_close(load_file(found / "model.safetensors"), weights, atol=1e-9, rtol=0)


@pytest.mark.slow
def test_sharded_runs_resume_unsharded_and_the_reverse(trained_as, tmp_path):
    whole = {kind: trained_as / kind / "all tied" for kind in ("1", "2 sharded")}
    pairs = [("1", "2 sharded"), ("2 sharded", "1")]
    check_resuming(whole, pairs, tmp_path)


@pytest.mark.slow
def test_every_kind_of_run_resumes_every_other(tmp_path):
    whole = {kind: tmp_path / kind for kind in KINDS}
    runs = [(kind, {"overrides": [*AVERAGED, f"output_dir={run}"]}) for kind, run in whole.items()]
    run_all(tmp_path, runs, float64=True)
    for run in whole.values():
        assert train_losses(run) == pytest.approx(train_losses(whole["1"]), abs=1e-9), run.name
    check_resuming(whole, [(begun, resumed) for begun in KINDS for resumed in KINDS], tmp_path)


# -- other precisions --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sharded_run_in_bf16_writes_the_files_of_any_run(trained, tmp_path):
    """With accumulation, averaging, and batches to translate that the processes cannot share evenly; resumed."""
    run = tmp_path / "run"
    overrides = [*AVERAGED, "optimization.gradient_accumulation_steps=2", "checkpoints.every=5", f"output_dir={run}"]
    overrides += ["evaluation.batch_size=15", "evaluation.every=5"]
    first = {"overrides": [*overrides, "optimization.max_steps=5"]}
    more = {"overrides": [*overrides, "optimization.max_steps=10"], "resume": True}
    output = run_all(tmp_path, [("2 sharded", first), ("2 sharded", more)], precision="bf16")
    assert f"resuming from {run / 'checkpoints' / 'step-0000005'}" in output
    assert "its dropout does not" not in output
    losses = train_losses(run)
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    for folder, whole in ((run, trained), (run / "checkpoints/step-0000010", trained / "checkpoints/step-0000020")):
        config, expected = (json.loads((each / "config.json").read_text()) for each in (folder, whole))
        assert config["architectures"] == expected["architectures"] == ["ScratchForConditionalGeneration"]
        assert config["auto_map"] == expected["auto_map"]
        assert {path.name for path in folder.glob("*.py")} == {path.name for path in whole.glob("*.py")}
        assert {weight.dtype for weight in load_file(folder / "model.safetensors").values()} == {torch.float32}
        AutoModelForSeq2SeqLM.from_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["1", "2 sharded"])
def test_the_gradient_scaler_recovers_and_resumes(kind, tmp_path):
    """At first gradients overflow, and updates are skipped until the scale is low enough; a resumed run keeps it."""
    options = ["optimization.max_steps=20", "checkpoints.every=5", "checkpoints.keep_last=3"]
    options += [f"output_dir={tmp_path / 'run'}"]
    run, seen = {"overrides": [*RUN, *options]}, []
    for resumed in ({}, {"resume_from": "step-0000010"}):
        run_all(tmp_path, [(kind, run | resumed)], precision="fp16", scale=2.0**24)
        names = ("step", "loss", "nonfinite_updates")
        records = [[record.get(name) for name in names] for record in read_metrics(tmp_path / "run", "train")]
        seen.append((records, (tmp_path / "run" / "model.safetensors").read_bytes()))
    assert seen[0] == seen[1]
    assert 0 < records[-1][2] < 10
    assert records[-1][1] < records[10][1]


@pytest.mark.slow
def test_compiled_layers_train_sharded_and_distributed(tmp_path):
    """In float32: compiled or not, sharded or not, two processes make nearly the same updates."""
    runs = [
        (kind, {"overrides": [*RUN, f"compile={compiled}", f"output_dir={tmp_path / name}"]})
        for name, kind, compiled in (("eager", "2", "false"), ("sharded", "2 sharded", "true"), ("spread", "2", "true"))
    ]
    run_all(tmp_path, runs)
    eager = tmp_path / "eager"
    for run in (tmp_path / "sharded", tmp_path / "spread"):
        assert train_losses(run) == pytest.approx(train_losses(eager), abs=1e-4)
        assert set(load_file(run / "model.safetensors")) == set(load_file(eager / "model.safetensors"))
