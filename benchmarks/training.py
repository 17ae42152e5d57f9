"""
Training speed and memory: target tokens a second, peak memory above the idle process, and the share of this machine's
matrix-product peak, of this project and its peers in the same shape, on the same batches, in turn, several rounds.

    python benchmarks/training.py                              # tiny, small and base; float32; a CPU
    python benchmarks/training.py --shapes base --bf16         # under autocast, as Accelerate runs mixed precision
    python benchmarks/training.py --shapes base big --bf16 --device cuda --compiled

The batches are of pairs of like length. Every update is forward, backward, clipping and fused AdamW. Before anything is
timed, this project's model and MarianMT's with the same weights must have the same loss and gradients.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time

import peers
import torch


class Trainee:
    """A model and its optimizer, and how one update is made."""

    def __init__(self, name: str, shape: peers.Shape, device: str, bf16: bool, compiled: bool = False):
        torch.manual_seed(0)
        self.name = name
        self.model = peers.MAKERS[name](shape).to(device).train()
        self.forward = torch.compile(self.model, dynamic=True) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.autocast = torch.autocast(device, torch.bfloat16) if bf16 else contextlib.nullcontext()

    def update(self, batch: dict[str, torch.Tensor]) -> None:
        with self.autocast:
            loss = peers.loss_of(self.name, self.forward, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def check_equality(shape: peers.Shape, batch: dict[str, torch.Tensor]) -> float:
    """The largest difference of loss and embedding gradient between equal weights here and in MarianMT."""
    losses, gradients = [], []
    pair = peers.equal_pair(shape)
    for name, model in zip(("modeling_scratch", "MarianMT"), pair, strict=True):
        loss = peers.loss_of(name, model.eval(), batch)
        loss.backward()
        losses.append(loss.item())
        # Not of the start token, which is padding too: what Marian's embedding of that reads gets no gradient.
        gradients.append(model.get_input_embeddings().weight.grad[peers.PAD + 1 :].norm().item())
    difference = max(abs(losses[0] - losses[1]), abs(gradients[0] - gradients[1]))
    if difference > 1e-3:  # of float32; in float64 they are the same to 1e-9
        raise SystemExit(f"not the same work: losses {losses}, norms of gradients {gradients}")
    return difference


def memory(name: str, shape: peers.Shape, device: str, bf16: bool, updates: int = 4) -> float:
    """Mebibytes at the peak of a few updates, above the process before it has a model."""
    batches = peers.make_batches(shape, updates, device=device)
    batches.sort(key=lambda batch: -batch["labels"].numel())
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
    else:
        peers.loss_of("nn.Transformer", peers.TorchTranslator(peers.Shape(32, 1, 2, 32, 100)), tiny_batch()).backward()
        before = peers.resident()
    trainee = Trainee(name, shape, device, bf16)
    for batch in batches:
        trainee.update(batch)
    return (torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peers.resident()) - before


def tiny_batch() -> dict[str, torch.Tensor]:
    """For what a library sets aside at its first use, whatever the model."""
    ids = torch.randint(4, 100, (2, 5))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def compare(shape_name: str, options: argparse.Namespace) -> dict:
    shape = peers.SHAPES[shape_name]
    device, names = options.device, options.peers
    batches = peers.make_batches(shape, options.updates, device=device)
    difference = check_equality(shape, peers.make_batches(shape, 1)[0])
    trainees = {name: Trainee(name, shape, device, options.bf16) for name in names}
    if options.compiled:
        for name in ("modeling_scratch", "MarianMT"):
            trainees[f"{name}, compiled"] = Trainee(name, shape, device, options.bf16, compiled=True)
    tokens = sum(map(peers.target_tokens, batches))
    operations = sum(peers.matrix_operations(shape, batch) for batch in batches)
    peak = peers.matrix_peak(torch.bfloat16 if options.bf16 else torch.float32, device)
    for trainee in trainees.values():
        for batch in batches[:2] if "compiled" not in trainee.name else batches:
            trainee.update(batch)
    rates: dict[str, list[float]] = {name: [] for name in trainees}
    for _ in range(options.rounds):
        for name, trainee in trainees.items():
            peers.synchronize(device)
            began = time.perf_counter()
            for batch in batches:
                trainee.update(batch)
            peers.synchronize(device)
            rates[name].append(tokens / (time.perf_counter() - began))
    utilisation = {name: statistics.median(each) / tokens * operations / peak for name, each in rates.items()}
    del trainees
    memories = {}
    for name in names:
        command = [sys.executable, __file__, "--memory", name, "--shapes", shape_name, "--device", device]
        command += ["--bf16"] if options.bf16 else []
        memories[name] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {
        "shape": shape_name,
        "difference": difference,
        "padding": peers.padding(batches),
        "peak": peak,
        "rates": rates,
        "utilisation": utilisation,
        "memories": memories,
    }


def table(found: dict) -> str:
    ours = found["rates"]["modeling_scratch"]
    lines = [
        f"\n**{found['shape']}**: equal weights differ by {found['difference']:.1e} in loss and gradient; "
        f"{100 * found['padding']:.1f} % padding; matrix-product peak {found['peak'] / 1e9:,.0f} billion a second\n",
        "| | target tokens a second | this project is so many times as fast (lowest to highest) | of the peak, % "
        "| MiB above idle | this project needs so much of it |",
        "|---|---|---|---|---|---|",
    ]
    for name, rates in found["rates"].items():
        ratios = [mine / theirs for mine, theirs in zip(ours, rates, strict=True)]
        mebibytes = found["memories"].get(name)
        memory = f"{mebibytes:,.0f} | {found['memories']['modeling_scratch'] / mebibytes:.2f}" if mebibytes else "|"
        lines.append(
            f"| {name} | {statistics.median(rates):,.0f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}) | {100 * found['utilisation'][name]:.0f} | {memory} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=peers.SHAPES, default=["tiny", "small", "base"])
    parser.add_argument("--peers", nargs="+", choices=peers.MAKERS, default=list(peers.MAKERS))
    parser.add_argument("--updates", type=int, default=6, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too, of this project and MarianMT")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        (shape,) = options.shapes
        print(json.dumps(memory(options.memory, peers.SHAPES[shape], options.device, options.bf16)))
        return
    print(f"{peers.describe_machine()}; {'bf16' if options.bf16 else 'float32'}, {options.rounds} rounds", flush=True)
    found = []
    for shape in options.shapes:
        found.append(compare(shape, options))
        print(table(found[-1]), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
