"""
Generation of this checkout against another checkout of this project, with the same weights, in turn: what a change of
the model or the search costs or gains.

    git worktree add ../before HEAD~1
    python benchmarks/search.py ../before
    python benchmarks/search.py ../before --shapes base --batches 1 --cases greedy

Cases: greedy, beam 5; `opus`, beam 5 with the generation config of OPUS-MT models (a banned token, a forced end);
`recorded`, greedy after one forward pass with `output_attentions=True`; and `n-best`, the five best of beam 5 with
their scores, against plain beam 5 of this checkout.
"""

import argparse
import copy
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import peers
import torch

CASES = ("greedy", "beam", "opus", "recorded", "n-best")


def load_package(checkout: Path) -> ModuleType:
    """The package of another checkout, under a name of its own."""
    folder = checkout.resolve() / "modeling_scratch"
    file, within = folder / "__init__.py", [str(folder)]
    spec = importlib.util.spec_from_file_location("before", file, submodule_search_locations=within)
    package = importlib.util.module_from_spec(spec)
    sys.modules["before"] = package
    spec.loader.exec_module(package)
    return package


def make_pair(shape: str, package: ModuleType) -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    mine = peers.ours(peers.SHAPES[shape]).eval()
    for parameter in mine.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(2.0)  # so that rounding decides less often
    fields = {name: getattr(mine.config, name) for name in package.ScratchConfig.field_names()}
    before = package.ScratchForConditionalGeneration(package.ScratchConfig(**fields | {"rope_parameters": None})).eval()
    before.load_state_dict(mine.state_dict())
    return {"this": mine, "before": before}


def make_case(case: str, models: dict, batch: dict, tokens: int) -> tuple[Callable, Callable]:
    """What is timed and what it is compared with."""
    settings = {"max_new_tokens": tokens, "do_sample": False, "num_beams": 1 if case in ("greedy", "recorded") else 5}
    if case == "opus":
        settings |= {"bad_words_ids": [[peers.PAD]], "forced_eos_token_id": peers.EOS}
    if case == "recorded":
        model = models["this"]
        model(**batch, decoder_input_ids=batch["input_ids"][:, :2], output_attentions=True)
    if case == "n-best":
        from modeling_scratch.batched_generation import generate_batch

        ids = [row[mask.bool()].tolist() for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
        run = lambda **more: generate_batch(models["this"], ids, **settings, **more)[0]  # noqa: E731
        return lambda: run(num_return_sequences=5, return_scores=True)[:, 0], lambda: run()[:, 0]
    return tuple(lambda model=model: model.generate(**batch, **settings) for model in models.values())


def compare(case: str, shape: str, size: int, models: dict, options: argparse.Namespace) -> str:
    torch.manual_seed(1)
    lengths, _ = peers.make_lengths(max(16, size))
    rows = [torch.randint(4, peers.SHAPES[shape].vocab_size, (int(length),)) for length in sorted(lengths[:size])]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    batch = {"input_ids": ids.masked_fill(ids < 0, peers.PAD), "attention_mask": (ids >= 0).long()}
    first, second = make_case(case, models, batch, options.tokens)
    found, expected = first(), second()
    width = min(found.shape[1], expected.shape[1])
    same = int((found[:, :width] == expected[:, :width]).all(dim=1).sum())
    times: list[tuple[float, float]] = []
    repeats = 1
    began = time.perf_counter()
    first()
    repeats = max(1, int(options.seconds / (time.perf_counter() - began)))
    for _ in range(options.rounds):
        pair = []
        for run in (first, second):
            began = time.perf_counter()
            for _ in range(repeats):
                run()
            pair.append((time.perf_counter() - began) / repeats)
        times.append(tuple(pair))
    ratios = sorted(second / first for first, second in times)
    mine = statistics.median(first for first, _ in times)
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return f"| {case} | {shape} | {size} | {mine * 1000:,.1f} | {spread} | {same} of {len(found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other checkout")
    parser.add_argument("--shapes", nargs="+", choices=peers.SHAPES, default=["tiny", "small", "base"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--tokens", type=int, default=16, help="new ones for each sentence at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement, about")
    options = parser.parse_args()
    package = load_package(options.checkout)
    print(f"{peers.describe_machine()}; float32, {options.rounds} rounds, {options.tokens} new tokens a sentence\n")
    print("| case | shape | batch | ms | times as fast | sentences with the same tokens |\n|---|---|---|---|---|---|")
    for shape in options.shapes:
        models = make_pair(shape, package)
        for case in options.cases:
            for size in options.batches if case != "recorded" else options.batches[-1:]:
                print(compare(case, shape, size, copy.copy(models), options), flush=True)


if __name__ == "__main__":
    main()
