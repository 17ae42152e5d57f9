"""
Ends a training run with one of seven signals at random moments, from its first second on, restarts it each time with
the same command line (--auto-resume), and compares its final weights with those of an undisturbed run: they must be the
same bit for bit. Prints a table.

    python benchmarks/resume.py                       # one process and two, streamed, compiled: 20 signals each
    python benchmarks/resume.py --modes one --kills 5
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
UPDATES, INTERVAL = 40, 5  # in all, and between checkpoints
RECIPE = [
    "data.embedded_size=600",
    "data.max_source_tokens=64",
    "data.max_target_tokens=64",
    "tokenizer.vocab_size=400",
    "model.overrides={d_model: 32, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 64, dropout: 0.1}",
    "optimization.max_epochs=null",
    f"optimization.max_steps={UPDATES}",
    "optimization.tokens_per_batch=512",
    "evaluation.every=10",
    "evaluation.num_beams=2",
    "evaluation.max_new_tokens=8",
    f"checkpoints.every={INTERVAL}",
    "checkpoints.average_last=3",
    "logging_steps=1",
]
LAUNCH = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--mixed_precision", "no"]
LAUNCH += ["--dynamo_backend", "no", "--num_processes", "2", "--main_process_port", "0"]
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT, signal.SIGABRT]
SECONDS_TO_END = 120
MODES = {
    "one": ([], []),
    "one-compiled": ([], ["compile=true"]),
    "two": (LAUNCH, []),
    "stream": ([], ["data.streaming=true", "data.shuffle_buffer=100", "data.num_workers=1"]),
    "two-stream": (LAUNCH, ["data.streaming=true", "data.shuffle_buffer=100"]),
}


@dataclass
class Outcome:
    """What happened to a run."""

    kills: int = 0
    resumes: int = 0
    most_lost: int = 0  # updates lost between the newest complete checkpoint and the kill
    identical: bool = True
    same_scores: bool = True

    def compare(self, whole: Path, killed: Path) -> None:
        first, second = (load_file(folder / "model.safetensors") for folder in (whole, killed))
        self.identical &= all(torch.equal(first[name], second[name]) for name in first)
        self.same_scores &= scores(whole) == scores(killed)


def start(mode: str, folder: Path, *arguments: str) -> subprocess.Popen:
    launcher, recipe = MODES[mode]
    return subprocess.Popen(
        [sys.executable, *launcher, "train.py", *RECIPE, *recipe, f"output_dir={folder}", *arguments],
        cwd=ROOT,
        env={"OMP_NUM_THREADS": "1", **os.environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in SIGNALS if number != signal.SIGKILL],
    )


def descendants(pid: int) -> list[int]:
    """All descendants of a process; a launcher's workers have sessions of their own."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    return [each for child in map(int, found) for each in (child, *descendants(child))]


def end(process: subprocess.Popen, number: signal.Signals) -> None:
    """Signal all its processes at once, as a terminal does, and wait until they are gone, so that none still writes."""
    if number == signal.SIGKILL:
        process.send_signal(signal.SIGSTOP)  # so that a launcher starts and ends nothing in the meantime
    doomed = [*descendants(process.pid), process.pid]
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    process.communicate(timeout=SECONDS_TO_END)
    while any(Path(f"/proc/{pid}").exists() for pid in doomed):
        time.sleep(0.05)


def finish(process: subprocess.Popen) -> str:
    """Wait for a run, and return its standard error. RuntimeError if it failed."""
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors)
    return errors


def last_update(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def last_checkpoint(folder: Path) -> int:
    names = [path.name for path in (folder / "checkpoints").glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def scores(folder: Path) -> list[dict]:
    return [record for line in (folder / "metrics.jsonl").open() if (record := json.loads(line)).get("final")]


def wait_for_its_moment(process: subprocess.Popen, folder: Path, chance: random.Random, duration: float) -> None:
    """Wait for a random time after the start or, since a short run is mostly preparation, for a random update."""
    begun = last_update(folder)
    at = chance.randint(begun + 1, UPDATES) if begun < UPDATES and chance.random() < 0.6 else math.inf
    until = time.monotonic() + (2 * duration if at <= UPDATES else chance.uniform(0.05, 0.95) * duration)
    while process.poll() is None and time.monotonic() < until and last_update(folder) < at:
        time.sleep(0.005)


def survive(mode: str, kills: int, work: Path, seed: int = 0) -> Outcome:
    """Run once undisturbed and once with this many signals, and compare."""
    chance, outcome = random.Random(seed), Outcome()
    numbers = [SIGNALS[number % len(SIGNALS)] for number in range(kills)]
    chance.shuffle(numbers)
    began = time.monotonic()
    whole, killed = work / f"{mode}-whole", work / f"{mode}-killed"
    finish(start(mode, whole))
    duration = time.monotonic() - began
    while True:
        resumes = last_checkpoint(killed) > 0 and not scores(killed)  # a finished run stays as it is
        process = start(mode, killed, "--auto-resume")
        outcome.resumes += resumes
        if outcome.kills == kills:
            said = finish(process)
            if resumes and not re.search(r"resuming from .*step-\d+", said):
                raise RuntimeError(f"it does not say what it resumes from: {said}")
            break
        wait_for_its_moment(process, killed, chance, duration)
        if process.poll() is None:
            end(process, numbers[outcome.kills])
            outcome.kills += 1
            outcome.most_lost = max(outcome.most_lost, last_update(killed) - last_checkpoint(killed))
        else:  # it finished first: start another, for the remaining signals
            finish(process)
            outcome.compare(whole, killed)
            shutil.rmtree(killed)
    outcome.compare(whole, killed)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    print(f"| mode | kills | resumes | most updates lost (interval {INTERVAL}) | weights | scores |")
    print("|---|---|---|---|---|---|")
    fine = True
    with tempfile.TemporaryDirectory() as work:
        for mode in options.modes:
            outcome = survive(mode, options.kills, Path(work), options.seed)
            fine = fine and outcome.identical and outcome.same_scores and outcome.most_lost <= INTERVAL
            weights, same = ("the same" if good else "DIFFERENT" for good in (outcome.identical, outcome.same_scores))
            print(
                f"| {mode} | {outcome.kills} | {outcome.resumes} | {outcome.most_lost} | {weights} | {same} |",
                flush=True,
            )
    sys.exit(not fine)


if __name__ == "__main__":
    main()
