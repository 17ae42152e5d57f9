"""
Generation speed: sentences and target tokens a second of `generate()`, greedy and with beam 5, in batches of 1, 16 and
64, of this project and its peers in turn, several rounds. This project's model and MarianMT's hold the same weights,
and must give the same tokens.

    python benchmarks/generation.py                            # tiny, small and base; float32; a CPU
    python benchmarks/generation.py --shapes base --batches 64 --peers MarianMT

The weights are random, so that sentences rarely end before they have as many new tokens as are allowed.
"""

import argparse
import json
import statistics
import time

import peers
import torch


def make_models(shape: peers.Shape, names: list[str], device: str) -> dict[str, torch.nn.Module]:
    mine, marian = peers.equal_pair(shape)
    models = {"modeling_scratch": mine, "MarianMT": marian}
    models |= {name: peers.MAKERS[name](shape) for name in names if name not in models}
    return {name: models[name].to(device).eval() for name in ["modeling_scratch", *names]}


def make_sources(shape: peers.Shape, batch_size: int, device: str) -> dict[str, torch.Tensor]:
    """As many random sentences of ordinary lengths."""
    lengths, _ = peers.make_lengths(batch_size)
    rows = [torch.randint(4, shape.vocab_size, (int(length),)) for length in sorted(lengths)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=peers.PAD)
    return {"input_ids": ids.to(device), "attention_mask": (ids != peers.PAD).long().to(device)}


def compare(shape_name: str, batch_size: int, beams: int, options: argparse.Namespace) -> dict:
    shape = peers.SHAPES[shape_name]
    models = make_models(shape, options.peers, options.device)
    source = make_sources(shape, batch_size, options.device)
    settings = {"num_beams": beams, "do_sample": False, "max_new_tokens": options.tokens}
    outputs = {name: model.generate(**source, **settings) for name, model in models.items()}
    if "MarianMT" in outputs and not torch.equal(outputs["modeling_scratch"], outputs["MarianMT"]):
        raise SystemExit("not the same tokens")
    repeats = max(1, 16 // batch_size)
    rates: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.rounds):
        for name, model in models.items():
            peers.synchronize(options.device)
            began = time.perf_counter()
            for _ in range(repeats):
                model.generate(**source, **settings)
            peers.synchronize(options.device)
            rates[name].append(repeats * batch_size / (time.perf_counter() - began))
    return {"shape": shape_name, "batch": batch_size, "beams": beams, "tokens": options.tokens, "rates": rates}


def lines(found: dict) -> list[str]:
    ours = found["rates"]["modeling_scratch"]
    decoding = "greedy" if found["beams"] == 1 else f"beam {found['beams']}"
    rows = []
    for name, rates in found["rates"].items():
        ratios = [mine / theirs for mine, theirs in zip(ours, rates, strict=True)]
        middle = statistics.median(rates)
        rows.append(
            f"| {found['shape']} | {decoding} | {found['batch']} | {name} | {middle:,.1f} | "
            f"{middle * found['tokens']:,.0f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}) |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=peers.SHAPES, default=["tiny", "small", "base"])
    parser.add_argument("--peers", nargs="+", choices=["MarianMT", "BART"], default=["MarianMT", "BART"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--tokens", type=int, default=16, help="new ones for each sentence")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    print(f"{peers.describe_machine()}; float32, {options.rounds} rounds, {options.tokens} new tokens a sentence\n")
    print(
        "| shape | decoding | batch | | sentences a second | tokens a second | this project is so many times as fast |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    found = []
    for shape in options.shapes:
        for beams in options.beams:
            for batch_size in options.batches:
                found.append(compare(shape, batch_size, beams, options))
                print("\n".join(lines(found[-1])), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
