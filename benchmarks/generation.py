"""
Measure the speed of generation: sentences and target tokens a second of `generate()`, with greedy search and with a
beam of 5, in batches of 1, 16 and 64, of this project and its peers. They take turns, for several rounds. This
project's model and MarianMT's hold the same weights and must give the same tokens; one sentence in a hundred may
differ, where rounding decides. The table shows how many agree.

    python benchmarks/generation.py                            # tiny, small and base; float32; a CPU
    python benchmarks/generation.py --shapes base --batches 64 --peers MarianMT
    python benchmarks/generation.py --folder FOLDER --sources FILE     # a trained post-norm model, real sentences

With random weights, translations rarely end before the limit on new tokens. Those of a trained model have different
lengths; its sentences are in the order of the file, in batches of the given size.
"""

import argparse
import statistics
import time
from pathlib import Path

import peers
import torch

MAY_DIFFER = 0.01  # the share of sentences where rounding decides between equally good hypotheses
SENTENCES = 512  # of a file; in batches of one, an eighth of them


def make_models(shape_name: str, options: argparse.Namespace) -> dict[str, torch.nn.Module]:
    if options.folder:
        from modeling_scratch.apps.convert import to_marian
        from modeling_scratch.loading import load_translator

        mine = load_translator(options.folder)
        models = {"modeling_scratch": mine, "MarianMT": to_marian(mine)}
    else:
        shape = peers.SHAPES[shape_name]
        mine, marian = peers.equal_pair(shape)
        models = {"modeling_scratch": mine, "MarianMT": marian}
        models |= {name: peers.MAKERS[name](shape) for name in options.peers if name not in models}
    names = ["modeling_scratch", *(name for name in options.peers if name in models)]
    return {name: models[name].to(options.device).eval() for name in names}


def make_batches(shape_name: str, batch_size: int, options: argparse.Namespace) -> list[dict[str, torch.Tensor]]:
    """Random sentences of ordinary lengths, or those of a file."""
    if options.folder:
        from modeling_scratch.loading import load_tokenizers

        tokenizer, _ = load_tokenizers(options.folder)
        sentences = Path(options.sources).read_text(encoding="utf-8").splitlines()
        count = min(len(sentences), SENTENCES if batch_size > 1 else SENTENCES // 8)
        rows = [torch.tensor(ids) for ids in tokenizer(sentences[:count]).input_ids]
    else:
        lengths, _ = peers.make_lengths(max(16, batch_size))
        vocab_size = peers.SHAPES[shape_name].vocab_size
        rows = [torch.randint(4, vocab_size, (int(length),)) for length in sorted(lengths)]
    batches = []
    for first in range(0, len(rows), batch_size):
        ids = torch.nn.utils.rnn.pad_sequence(rows[first : first + batch_size], batch_first=True, padding_value=-1)
        mask = ids >= 0
        batch = {"input_ids": ids.masked_fill(~mask, peers.PAD), "attention_mask": mask.long()}
        batches.append({name: tensor.to(options.device) for name, tensor in batch.items()})
    return batches


def cut(ids: list[int]) -> list[int]:
    """The tokens after the decoder's start, up to and including the end token, without padding."""
    return ids[1 : ids.index(peers.EOS, 1) + 1] if peers.EOS in ids[1:] else ids[1:]


def compare(shape_name: str, batch_size: int, beams: int, options: argparse.Namespace) -> dict:
    models = make_models(shape_name, options)
    batches = make_batches(shape_name, batch_size, options)
    settings = {"num_beams": beams, "do_sample": False, "max_new_tokens": options.tokens}
    outputs = {name: [model.generate(**batch, **settings) for batch in batches] for name, model in models.items()}
    said = {name: [cut(row.tolist()) for batch in each for row in batch] for name, each in outputs.items()}
    sentences = sum(len(batch["input_ids"]) for batch in batches)
    different = sum(map(list.__ne__, said["modeling_scratch"], said.get("MarianMT", said["modeling_scratch"])))
    if different > sentences * MAY_DIFFER:
        raise SystemExit(f"{different} of {sentences} sentences are not the same tokens")
    tokens = {name: sum(map(len, each)) / sentences for name, each in said.items()}
    rates: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.rounds):
        for name, model in models.items():
            peers.synchronize(options.device)
            began = time.perf_counter()
            for batch in batches:
                model.generate(**batch, **settings)
            peers.synchronize(options.device)
            rates[name].append(sentences / (time.perf_counter() - began))
    shape_name = Path(shape_name).name
    same = {"MarianMT": sentences - different}
    found = {"shape": shape_name, "batch": batch_size, "beams": beams, "sentences": sentences}
    return found | {"tokens": tokens, "same": same, "rates": rates}


def lines(found: dict) -> list[str]:
    ours = found["rates"]["modeling_scratch"]
    decoding = "greedy" if found["beams"] == 1 else f"beam {found['beams']}"
    rows = []
    for name, rates in found["rates"].items():
        middle = statistics.median(rates)
        same = f"{found['same'][name]} of {found['sentences']}" if name in found["same"] else ""
        rows.append(
            f"| {found['shape']} | {decoding} | {found['batch']} | {name} | {middle:,.1f} | "
            f"{middle * found['tokens'][name]:,.0f} | {peers.spread(peers.quotients(ours, rates))} | {same} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=peers.SHAPES, default=["tiny", "small", "base"])
    parser.add_argument("--peers", nargs="+", choices=["MarianMT", "BART"], default=["MarianMT", "BART"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--tokens", type=int, help="new ones for each sentence at most; 16, of a folder 100")
    parser.add_argument("--folder", help="a trained model, post-norm as MarianMT is, in place of random ones")
    parser.add_argument("--sources", help="its sentences, a line each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    if bool(options.folder) != bool(options.sources):
        parser.error("--folder and --sources belong together")
    options.tokens = options.tokens or (100 if options.folder else 16)
    options.shapes = [options.folder] if options.folder else options.shapes
    print(
        f"{peers.describe_machine()}; float32, {options.rounds} rounds, up to {options.tokens} new tokens a sentence\n"
    )
    print(
        "| shape | decoding | batch | | sentences a second | tokens a second | times as fast as it | "
        "sentences with its tokens |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    found = []
    for shape in options.shapes:
        for beams in options.beams:
            for batch_size in options.batches:
                found.append(compare(shape, batch_size, beams, options))
                print("\n".join(lines(found[-1])), flush=True)
    peers.write_json(found, options.json)


if __name__ == "__main__":
    main()
