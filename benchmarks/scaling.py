"""
Measure how the cost of training grows: seconds for each target token and peak memory of an update, of this project and
MarianMT in turn, as the sentence length, the vocabulary, the batch or the depth grows; and the cost of preparing the
batches as the corpus grows.

    python benchmarks/scaling.py --plot docs/images/scaling.png

Unless stated otherwise, the shape is tiny, with batches of 4,096 target tokens in sentences of 16 tokens. Every point
is measured in its own process: the median of five updates, with the fastest and the slowest. At the end: how much of
the memory grows with batch x vocabulary, in copies of the logits; a model that stores them has several.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import figures
import peers
import torch
from matplotlib.figure import Figure

POINTS = {
    "length": [8, 16, 32, 64, 128, 256],
    "vocabulary": [2_500, 5_000, 10_000, 20_000, 40_000],
    "batch": [1024, 2048, 4096, 8192, 16384],
    "layers": [1, 2, 4, 8],
}
UNITS = {
    "length": "tokens a sentence",
    "vocabulary": "tokens in the vocabulary",
    "batch": "target tokens a batch",
    "layers": "layers of encoder and of decoder",
}
NAMES = ("modeling_scratch", "MarianMT")
CORPORA = [10_000, 100_000, 1_000_000]
# Corners of the rectangle that shows what grows with both.
BATCHES, VOCABULARIES = (2048, 8192), (10_000, 40_000)


def measure(name: str, length: int = 16, vocabulary: int = 10_000, batch: int = 4096, layers: int = 4) -> dict:
    """Seconds per target token of each update, and peak mebibytes above the idle process."""
    shape = dataclasses.replace(peers.SHAPES["tiny"], vocab_size=vocabulary, layers=layers)
    before = peers.idle_memory()
    torch.manual_seed(0)
    model = peers.for_training(name, shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(4, vocabulary, (2, batch // length, length))
    pairs = {"input_ids": ids[0], "attention_mask": torch.ones_like(ids[0]), "labels": ids[1]}
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        peers.loss_of(name, model, pairs).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append((time.perf_counter() - began) / ids[1].numel())
    return {"updates": seconds[1:], "seconds": statistics.median(seconds[1:]), "mebibytes": peers.resident() - before}


def measure_corpus(pairs: int, batches: int = 50) -> dict:
    """Seconds per target token to plan an epoch and prepare its batches, with this many pairs in the corpus."""
    import numpy as np
    from datasets import Dataset

    from modeling_scratch.data.batches import PairCollator, make_loader, plan_epoch

    lengths = peers.make_lengths(pairs)
    sides = [np.split(np.random.default_rng(0).integers(4, 10_000, each.sum()), each.cumsum()[:-1]) for each in lengths]
    data = Dataset.from_dict({"input_ids": sides[0], "labels": sides[1]})
    began = time.perf_counter()
    plan = plan_epoch(*lengths, 4096, 0, 0)
    planning = (time.perf_counter() - began) / lengths[1].sum()
    loader = make_loader(data, itertools.islice(plan.micro_batches(0, 0, 1, 1), batches), PairCollator(peers.PAD))
    began = time.perf_counter()
    tokens = sum(map(peers.target_tokens, loader))
    return {"seconds": planning + (time.perf_counter() - began) / tokens}


def in_process(what: str, **arguments) -> dict:
    command = [sys.executable, __file__, "--measure", json.dumps([what, arguments])]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def spread(point: dict) -> str:
    """Median and range of the microseconds per target token."""
    middle, low, high = (1e6 * kind(point["updates"]) for kind in (statistics.median, min, max))
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def stored_logits() -> dict[str, float]:
    """How much memory grows with batch x vocabulary, in copies of the logits in float32."""
    logits = (BATCHES[1] - BATCHES[0]) * (VOCABULARIES[1] - VOCABULARIES[0]) * 4 / 2**20
    copies = {}
    for name in NAMES:
        low, high = (
            [in_process(name, batch=batch, vocabulary=size)["mebibytes"] for batch in BATCHES] for size in VOCABULARIES
        )
        copies[name] = ((high[1] - high[0]) - (low[1] - low[0])) / logits
    return copies


def plot(found: dict, path: str) -> None:
    """Plot time above memory, one column per axis."""
    figure = Figure(figsize=(4 * len(POINTS), 6.5), layout="constrained")
    for column, axis_name in zip(figure.subplots(2, len(POINTS)).T, POINTS, strict=True):
        for axis, key, label, factor in zip(
            column, ("seconds", "mebibytes"), ("microseconds a target token", "MiB above idle"), (1e6, 1), strict=True
        ):
            series = {
                name: (POINTS[axis_name], [factor * each[key] for each in found[axis_name][name]]) for name in NAMES
            }
            figures.curves(axis, series)
            axis.set(xlabel=UNITS[axis_name], ylabel=label, ylim=(0, None), xscale="log")
            axis.set_xticks(POINTS[axis_name], [f"{value:,}" for value in POINTS[axis_name]], fontsize=8)
            axis.minorticks_off()
    figures.save(figure, Path(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--plot", help="also draw them into this PNG file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, arguments = json.loads(options.measure)
        print(json.dumps(measure_corpus(**arguments) if what == "corpus" else measure(what, **arguments)))
        return
    print(f"{peers.describe_machine()}; float32\n")
    print("| | | microseconds a target token | MarianMT's | MiB above idle | MarianMT's |\n|---|---|---|---|---|---|")
    found: dict = {}
    for axis_name, values in POINTS.items():
        found[axis_name] = {name: [] for name in NAMES}
        for value in values:
            for name in NAMES:
                found[axis_name][name].append(in_process(name, **{axis_name: value}))
            mine, theirs = (found[axis_name][name][-1] for name in NAMES)
            print(
                f"| {UNITS[axis_name]} | {value:,} | {spread(mine)} | {spread(theirs)} | "
                f"{mine['mebibytes']:,.0f} | {theirs['mebibytes']:,.0f} |",
                flush=True,
            )
    found["corpus"] = [in_process("corpus", pairs=pairs) for pairs in CORPORA]
    print("\n| pairs in the corpus | microseconds a target token to plan and prepare its batches |\n|---|---|")
    for pairs, each in zip(CORPORA, found["corpus"], strict=True):
        print(f"| {pairs:,} | {1e6 * each['seconds']:.2f} |")
    found["stored logits"] = stored_logits()
    print("\n| | copies of the logits, batch x length x vocabulary, in the peak |\n|---|---|")
    for name, copies in found["stored logits"].items():
        print(f"| {name} | {copies:.2f} |", flush=True)
    peers.write_json(found, options.json)
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
