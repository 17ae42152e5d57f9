"""
Measure memory and speed of training updates: peak resident size above the model and its optimizer, and target tokens a
second, for micro-batches of several sizes, each in its own process. Prints a table, and a line fitted to the peaks.

    python benchmarks/memory.py                       # the paper's base model, sentences of 32 tokens, float32, CPU
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
LENGTH = 32


def update(name: str, vocabulary: int, tokens: int, updates: int) -> dict[str, float]:
    """The number of parameters; peak mebibytes above model, gradients and optimizer states; target tokens a second."""
    import torch

    from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
    from modeling_scratch.recipe.reading import read_yaml
    from modeling_scratch.training.fast_layers import use_fast_layers
    from modeling_scratch.training.fused_loss import TrainingLoss

    fields = read_yaml(ROOT / "configuration" / "models" / f"{name}.yaml")
    model = ScratchForConditionalGeneration(ScratchConfig(**(fields | {"vocab_size": vocabulary}))).train()
    use_fast_layers(model)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ids = torch.randint(4, vocabulary, (tokens // LENGTH, LENGTH))
    fused_loss = TrainingLoss(label_smoothing=0.1)
    began = time.perf_counter()
    for _ in range(updates):
        model(input_ids=ids, labels=ids, fused_loss=fused_loss).loss[0].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    rate = updates * ids.numel() / (time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"parameters": parameters, "above": peak - before, "rate": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base", help="a name in configuration/models")
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(update(options.model, options.vocabulary, options.child, options.updates)))
        return
    found = []
    for tokens in options.tokens:
        command = [sys.executable, __file__, "--model", options.model, "--vocabulary", str(options.vocabulary)]
        command += ["--updates", str(options.updates), "--child", str(tokens)]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    parameters = found[0]["parameters"]
    states = 16 * parameters / 2**20
    print(f"{options.model}: {parameters:,} parameters, {states:,.0f} MiB with gradients and Adam's states\n")
    print("| target tokens at once | MiB above that | target tokens a second |")
    print("|---|---|---|")
    for tokens, each in zip(options.tokens, found, strict=True):
        print(f"| {tokens:,} | {each['above']:,.0f} | {each['rate']:,.0f} |")
    slope, constant = np.polyfit(options.tokens, [each["above"] for each in found], 1)
    print(f"\nThe line: {constant:,.0f} MiB + {1024 * slope:,.0f} MiB for each 1,024 tokens")


if __name__ == "__main__":
    main()
