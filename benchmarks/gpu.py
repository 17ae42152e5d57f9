"""
Measure one GPU: training and decoding of this project and its peers in the same shapes, in turn, in one run of at most
three minutes.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --only training
    python benchmarks/gpu.py --device cpu --tiny       # only shows that the script works

Training is in bf16, of sentences of some 15 tokens (peers.py): the paper's base model with 25,000 tokens a side in an
update, and the model of the recipe multi30k-en-de with 4,096. This project trains in bins, by plain updates and, as its
runs do, by captured ones, with compiled layers and without; the others as their documentation shows, eagerly on padded
batches, with fused AdamW. `busy` is the time in which the GPU computes, from PyTorch's profiler: where an update takes
longer, the host sets the pace. The share of the peak counts useful products only, without padding.

Captured updates are compared with plain ones: if a warning says that none are captured, their rows are those of plain
ones.

Decoding is `generate()` for 16 new tokens, of this project's model and MarianMT with the same weights.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable

import peers
import torch
from accelerate import Accelerator
from torch.profiler import ProfilerActivity, profile

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.apps.experiments.profile import is_kernel
from modeling_scratch.data.batches import BatchShare, BinCollator
from modeling_scratch.recipe import shipped_recipes
from modeling_scratch.recipe.reading import load_recipe, planned_config
from modeling_scratch.training.captured_updates import make_training_step
from modeling_scratch.training.compilation import compile_training
from modeling_scratch.training.fast_layers import use_fast_layers
from modeling_scratch.training.step import TrainingStep
from modeling_scratch.training.throughput import operations_per_target_token, peak_of

PEERS = ("MarianMT", "nn.Transformer")
Batches = list[dict[str, torch.Tensor]]


def busy_milliseconds(function: Callable[[], None], device: str) -> float | None:
    """How long the GPU computes in a call."""
    if device != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        function()
        peers.synchronize(device)
    kernels = [event for event in profiler.key_averages() if is_kernel(event)]
    return sum(kernel.self_device_time_total for kernel in kernels) / 1e3


def by_turns(calls: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, float]:
    """The median seconds of each call."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            peers.synchronize(device)
            began = time.perf_counter()
            call()
            peers.synchronize(device)
            took[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


# -- training ----------------------------------------------------------------------------------------------------------


def as_bins(batches: Batches) -> Batches:
    """The same pairs in bins."""
    found = []
    for batch in batches:
        sources = [
            ids[mask == 1].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]
        targets = [labels[labels != -100].tolist() for labels in batch["labels"]]
        pairs = list(zip(sources, targets, strict=True))
        found.append(BinCollator(peers.PAD, max(1, len(pairs) // 64))(pairs))
    return found


def our_updates(recipe, model, batches: Batches, make_step: Callable, is_compiled: bool, options) -> Callable[[], None]:
    """
    What makes an update with each batch.

    Args:
        make_step: TrainingStep, or `make_training_step`, by which a run captures updates.
    """
    use_fast_layers(model)
    step = make_step(options.accelerator, model.to(options.device), recipe.optimization)
    step.model.train()
    if is_compiled:
        compile_training(step)
    counts = [peers.target_tokens(batch) for batch in batches]
    if options.device == "cuda":
        batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in batches]

    def update() -> None:
        for batch, count in zip(batches, counts, strict=True):
            step(BatchShare(iter([batch]), 1, count), recipe.optimization.learning_rate)

    return update


def their_updates(name: str, shape: peers.Shape, batches: Batches, options) -> Callable[[], None]:
    model = peers.for_training(name, shape).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [{key: tensor.to(options.device) for key, tensor in batch.items()} for batch in batches]
    on_gpu = options.device == "cuda"

    def update() -> None:
        for batch in batches:
            with torch.autocast("cuda", torch.bfloat16) if on_gpu else contextlib.nullcontext():
                loss = peers.loss_of(name, model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return update


def train(title: str, recipe, config, options) -> None:
    """Print the rows of one shape. The peers have its sizes, if not its architecture."""
    sizes = (config.d_model, config.encoder_layers, config.encoder_attention_heads, config.encoder_ffn_dim)
    shape = peers.Shape(*sizes, config.vocab_size)
    tokens = 512 if options.tiny else recipe.optimization.tokens_per_batch
    padded = peers.make_batches(shape, 2 if options.tiny else options.updates, tokens)
    count = sum(map(peers.target_tokens, padded))
    laid_out = as_bins(padded)
    lengths = [(batch["attention_mask"].sum(1).numpy(), (batch["labels"] != -100).sum(1).numpy()) for batch in padded]
    sources, targets = (torch.cat([torch.from_numpy(each[side]) for each in lengths]).numpy() for side in (0, 1))
    operations = operations_per_target_token(ScratchForConditionalGeneration(config), sources, targets)
    peak = peak_of(torch.cuda.get_device_name(), True, "bf16") if options.device == "cuda" else None
    contenders = {}
    ways = {"plain": (TrainingStep, False)}
    if options.device == "cuda":
        ways |= {"captured": (make_training_step, False), "captured, compiled": (make_training_step, True)}
    for way, (make_step, is_compiled) in ways.items():
        torch.manual_seed(0)
        model = ScratchForConditionalGeneration(config)
        contenders[f"modeling_scratch, {way}"] = our_updates(recipe, model, laid_out, make_step, is_compiled, options)
    for name in PEERS:
        contenders[name] = their_updates(name, shape, padded, options)
    for update in contenders.values():
        for _ in range(3):  # an update is captured when its shapes come back
            update()
    took = by_turns(contenders, options.rounds, options.device)
    for name, seconds in took.items():
        busy = busy_milliseconds(contenders[name], options.device)
        share = "" if peak is None else f"{count * operations / seconds / peak:.1%}"
        one = seconds / len(padded) * 1e3
        print(
            f"| {title} | {name} | {one:.1f} | {'' if busy is None else f'{busy / len(padded):.1f}'} | "
            f"{count / seconds:,.0f} | {share} |",
            flush=True,
        )


def training(options) -> None:
    base, multi30k = (load_recipe(shipped_recipes()[name], []) for name in ("wmt14-en-de", "multi30k-en-de"))
    print("| | | an update, ms | busy, ms | target tokens a second | share of the peak |\n|---|---|---|---|---|---|")
    shape = "tiny" if options.tiny else "base"
    train(shape, base, peers.ours(peers.SHAPES[shape]).config, options)
    train("multi30k-en-de", multi30k, planned_config(multi30k), options)


# -- decoding ----------------------------------------------------------------------------------------------------------


def decoding(options) -> None:
    print("\n| | batch | dtype | sentences a second | times as fast as MarianMT | sentences with its tokens |")
    print("|---|---|---|---|---|---|")
    mine, theirs = peers.equal_pair(peers.SHAPES["tiny" if options.tiny else "base"])
    for dtype in (torch.float32, torch.bfloat16) if options.device == "cuda" else (torch.float32,):
        models = {"ours": mine.to(options.device, dtype).eval(), "MarianMT": theirs.to(options.device, dtype).eval()}
        for beams in (1, 5):
            for size in (1, 64) if not options.tiny else (4,):
                torch.manual_seed(1)
                lengths = torch.randint(8, 25, (size, 1))
                ids = torch.randint(4, mine.config.vocab_size, (size, int(lengths.max())))
                mask = (torch.arange(ids.shape[1]) < lengths).long()
                batch = {"input_ids": ids.masked_fill(mask == 0, peers.PAD), "attention_mask": mask}
                batch = {name: tensor.to(options.device) for name, tensor in batch.items()}
                settings = {"num_beams": beams, "max_new_tokens": 16, "do_sample": False}
                calls = {
                    name: lambda model=model, batch=batch, settings=settings: model.generate(**batch, **settings)
                    for name, model in models.items()
                }
                for call in calls.values():
                    call(), call()
                took = by_turns(calls, options.rounds, options.device)
                found, expected = calls["ours"](), calls["MarianMT"]()
                width = min(found.shape[1], expected.shape[1])
                agree = (found[:, :width] == expected[:, :width]).all(dim=1).float().mean()
                print(
                    f"| {'greedy' if beams == 1 else f'beam {beams}'} | {size} | {str(dtype)[6:]} | "
                    f"{size / took['ours']:,.0f} against {size / took['MarianMT']:,.0f} | "
                    f"{took['MarianMT'] / took['ours']:.2f} | {agree:.0%} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["training", "decoding"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--updates", type=int, default=6, help="batches of each shape (default: 6)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    precision = "bf16" if options.device == "cuda" else "no"
    options.accelerator = Accelerator(mixed_precision=precision, cpu=options.device == "cpu")
    began = time.monotonic()
    print(f"{peers.describe_machine()}\n", flush=True)
    for name, part in (("training", training), ("decoding", decoding)):
        if options.only in (None, name):
            part(options)
    print(f"\n{time.monotonic() - began:.0f} seconds")


if __name__ == "__main__":
    main()
