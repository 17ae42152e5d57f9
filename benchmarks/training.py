"""
Measure training speed and memory: target tokens a second, peak memory above the idle process, and the share of this
machine's matrix-product peak, of this project and its peers in the same shape. They take turns, for several rounds.

    python benchmarks/training.py                              # tiny, small and base; float32; a CPU
    python benchmarks/training.py --shapes base --bf16         # under autocast, as Accelerate runs mixed precision
    python benchmarks/training.py --shapes base big --bf16 --device cuda --compiled --tokens-per-batch 25000

All train on the same batches, of pairs of similar length. MarianMT and BART are also timed on batches as Transformers'
documentation and Seq2SeqTrainer make them: a fixed number of pairs in random order. This project is also timed in bf16.
Every update is forward pass, backward pass, clipping and fused AdamW. Before anything is timed, this project's model
and MarianMT's with the same weights must have the same loss and the same gradient of every parameter.
"""

import argparse
import contextlib
import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import figures
import peers
import torch

from modeling_scratch.training.compilation import compile_layers

FIXED, BF16, COMPILED = ", fixed batches", ", bf16", ", compiled"


class Trainee:
    """A model and its optimizer, how it makes an update, and its batches."""

    def __init__(self, label: str, shape: peers.Shape, options: argparse.Namespace):
        torch.manual_seed(0)
        device = options.device
        self.name = name = label.partition(",")[0]
        self.is_compiled = label.endswith(COMPILED)
        self.batches = peers.make_batches(
            shape, options.updates, options.tokens_per_batch, device=device, fixed=label.endswith(FIXED)
        )
        self.tokens = sum(map(peers.target_tokens, self.batches))
        self.operations = sum(peers.matrix_operations(shape, batch) for batch in self.batches)
        self.model = peers.for_training(name, shape).to(device)
        self.forward = self._compiled() if self.is_compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.dtype = torch.bfloat16 if options.bf16 or label.endswith(BF16) else torch.float32
        narrow = self.dtype == torch.bfloat16
        self.autocast = torch.autocast(device, self.dtype) if narrow else contextlib.nullcontext()

    def _compiled(self) -> Callable:
        """Compile this project's layers as its training does; of the others, the whole model."""
        if self.name != "modeling_scratch":
            return torch.compile(self.model, dynamic=True)
        compile_layers(self.model)
        return self.model

    def update(self, batch: dict[str, torch.Tensor]) -> None:
        with self.autocast:
            loss = peers.loss_of(self.name, self.forward, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def check_equality(shape: peers.Shape, batch: dict[str, torch.Tensor]) -> float:
    """
    The largest difference between this project's model and MarianMT's, with equal weights: of the loss, or of a
    parameter's gradient as a share of the whole gradient's norm.
    """
    from modeling_scratch.apps.convert.marian import from_marian

    model, marian = (each.eval() for each in peers.equal_pair(shape))
    loss, expected_loss = peers.loss_of("modeling_scratch", model, batch), peers.loss_of("MarianMT", marian, batch)
    (loss + expected_loss).backward()
    for parameter in marian.parameters():
        if parameter.grad is not None:
            parameter.data.copy_(parameter.grad)  # gradients are converted like weights
    expected = dict(from_marian(marian).named_parameters())
    # Except for the start token, which is padding too: Marian's embedding gets no gradient from reading that.
    embedding = "model.encoder.embed_tokens.weight"
    model.get_parameter(embedding).grad[peers.PAD] = expected[embedding][peers.PAD].detach()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    differences = {
        name: ((parameter.grad - expected[name]).norm() / norm).item()
        for name, parameter in model.named_parameters()
        if name != "lm_head.bias"  # not trained by MarianMT
    }
    differences["loss"] = (loss - expected_loss).abs().item()
    worst = max(differences, key=differences.__getitem__)
    if differences[worst] > 1e-4:  # of float32
        raise SystemExit(f"not the same work: {worst} differs by {differences[worst]:.1e}")
    return differences[worst]


def memory(label: str, shape: peers.Shape, options: argparse.Namespace) -> float:
    """Peak mebibytes of a few updates, in the process or on the GPU, above those before it has a model."""
    device, options = options.device, argparse.Namespace(**{**vars(options), "updates": 3})
    if device == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
    else:
        before = peers.idle_memory()
    trainee = Trainee(label, shape, options)
    for batch in sorted(trainee.batches, key=lambda batch: -batch["labels"].numel()):
        trainee.update(batch)
    return (torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peers.resident()) - before


def memory_apart(label: str, shape_name: str, options: argparse.Namespace) -> float:
    """The same in a process of its own, since the peak of a process on the CPU does not fall again."""
    command = [sys.executable, __file__, "--memory", label, "--shapes", shape_name]
    command += ["--tokens-per-batch", str(options.tokens_per_batch), *(["--bf16"] if options.bf16 else [])]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def compare(shape_name: str, options: argparse.Namespace) -> dict:
    shape = peers.SHAPES[shape_name]
    device = options.device
    difference = check_equality(shape, peers.make_batches(shape, 1)[0])
    labels = ["modeling_scratch", *(name for name in options.peers if name != "modeling_scratch")]
    labels += [f"{name}{FIXED}" for name in options.peers if name in ("MarianMT", "BART")]
    labels += [] if options.bf16 else [f"modeling_scratch{BF16}"]
    compiled = [f"{name}{COMPILED}" for name in ("modeling_scratch", "MarianMT") if options.compiled]
    trainees = {label: Trainee(label, shape, options) for label in [*labels, *compiled]}
    peaks = {dtype: peers.matrix_peak(dtype, device) for dtype in (torch.float32, torch.bfloat16)}
    for label, trainee in trainees.items():
        began = time.perf_counter()
        for batch in trainee.batches if trainee.is_compiled else trainee.batches[:2]:
            trainee.update(batch)
        # Compiling may take minutes.
        print(f"{shape_name}, {label}: ready after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    rates: dict[str, list[float]] = {label: [] for label in trainees}
    for _ in range(options.rounds):
        for label, trainee in trainees.items():
            peers.synchronize(device)
            began = time.perf_counter()
            for batch in trainee.batches:
                trainee.update(batch)
            peers.synchronize(device)
            rates[label].append(trainee.tokens / (time.perf_counter() - began))
    found = {
        label: {
            "rates": rates[label],
            "utilization": statistics.median(rates[label]) / trainee.tokens * trainee.operations / peaks[trainee.dtype],
            "padding": peers.padding(trainee.batches),
        }
        for label, trainee in trainees.items()
    }
    del trainees, trainee
    for label in labels:
        found[label]["memory"] = (
            memory(label, shape, options) if device == "cuda" else memory_apart(label, shape_name, options)
        )
    peak = peaks[torch.bfloat16 if options.bf16 else torch.float32]
    return {
        "shape": shape_name,
        "difference": difference,
        "peak": peak,
        "contenders": found,
    }


def table(found: dict) -> str:
    ours = found["contenders"]["modeling_scratch"]
    lines = [
        f"\n**{found['shape']}**: equal weights differ by {found['difference']:.1e} in loss and gradient; "
        f"matrix-product peak {found['peak'] / 1e9:,.0f} billion a second\n",
        "| | padding, % | target tokens a second | times as fast as it (lowest to highest) | of the "
        "peak, padding included, % | peak MiB above idle | this project's share of it |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, each in found["contenders"].items():
        times = peers.quotients(ours["rates"], each["rates"])
        mebibytes = each.get("memory")
        memory = f"{mebibytes:,.0f} | {ours['memory'] / mebibytes:.2f}" if mebibytes else "|"
        lines.append(
            f"| {label} | {100 * each['padding']:.0f} | {statistics.median(each['rates']):,.0f} | "
            f"{peers.spread(times)} | "
            f"{100 * each['utilization']:.0f} | {memory} |"
        )
    return "\n".join(lines)


def plot(found: list[dict], path: str) -> None:
    """Draw this project's speed and memory as ratios to each contender's, by shape."""
    labels = [label for label in found[0]["contenders"] if label != "modeling_scratch"]
    speed, memory = {}, {}
    for each in found:
        contenders = each["contenders"]
        ours = contenders["modeling_scratch"]
        speed[each["shape"]] = [
            statistics.median(peers.quotients(ours["rates"], contenders[label]["rates"])) for label in labels
        ]
        memory[each["shape"]] = [ours["memory"] / contenders[label].get("memory", math.nan) for label in labels]
    figures.bars(
        path,
        labels,
        [("Training: times as fast as", speed), ("Peak memory: share of", memory)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=peers.SHAPES, default=["tiny", "small", "base"])
    parser.add_argument("--peers", nargs="+", choices=peers.MAKERS, default=list(peers.MAKERS))
    parser.add_argument("--updates", type=int, default=6, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens-per-batch", type=int, default=4096, help="on a side, padding included")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too, of this project and MarianMT")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--plot", help="also draw them into this PNG file")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        (shape,) = options.shapes
        print(json.dumps(memory(options.memory, peers.SHAPES[shape], options)))
        return
    print(f"{peers.describe_machine()}; {'bf16' if options.bf16 else 'float32'}, {options.rounds} rounds", flush=True)
    found = []
    for shape in options.shapes:
        found.append(compare(shape, options))
        print(table(found[-1]), flush=True)
    peers.write_json(found, options.json)
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
