"""
Compare generation in this checkout with another checkout of this project, with the same weights, in turn: the cost or
gain of a change to the model or the search.

    git worktree add ../before HEAD~1
    python benchmarks/search.py ../before
    python benchmarks/search.py ../before --shapes base --batches 1 --cases greedy
    python benchmarks/search.py ../before --folder runs/embedded --sources sentences.txt --tokens 100

Cases: greedy, beam 5; `opus`, beam 5 with the generation config of OPUS-MT models (a banned token, a forced end);
`recorded`, greedy after one forward pass with `output_attentions=True`; and `n-best`, the five best of beam 5 with
their scores, against plain beam 5 of this checkout. Weights are random and no sentence ends, unless a trained model is
given with sentences of its own; then there is also `file`, all of them through the pipeline with beam 5.
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

CASES = ("greedy", "beam", "opus", "recorded", "n-best", "file")


def load_package(checkout: Path) -> ModuleType:
    """The package of another checkout, under a name of its own."""
    folder = checkout.resolve() / "modeling_scratch"
    file, within = folder / "__init__.py", [str(folder)]
    spec = importlib.util.spec_from_file_location("before", file, submodule_search_locations=within)
    package = importlib.util.module_from_spec(spec)
    sys.modules["before"] = package
    spec.loader.exec_module(package)
    return package


def make_pair(shape: str, package: ModuleType, folder: Path | None) -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    if folder is None:
        mine = peers.ours(peers.SHAPES[shape]).eval()
        for parameter in mine.parameters():
            if parameter.ndim > 1:
                parameter.data.mul_(2.0)  # larger weights, so that rounding decides less often
    else:
        mine = type(peers.ours(peers.SHAPES["tiny"])).from_pretrained(folder).eval()
    their_config = package.ScratchConfig
    names = their_config.field_names() if hasattr(their_config, "field_names") else their_config.fields()
    fields = {name: getattr(mine.config, name) for name in names}
    before = package.ScratchForConditionalGeneration(their_config(**fields | {"rope_parameters": None})).eval()
    before.load_state_dict(mine.state_dict())
    before.generation_config = copy.deepcopy(mine.generation_config)
    return {"this": mine, "before": before}


def make_batch(shape: str, size: int, rows: list[list[int]] | None) -> dict[str, torch.Tensor]:
    if rows is None:
        torch.manual_seed(1)
        lengths, _ = peers.make_lengths(max(16, size))
        vocab_size = peers.SHAPES[shape].vocab_size
        rows = [torch.randint(4, vocab_size, (int(length),)).tolist() for length in sorted(lengths[:size])]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows[:size]], True, -1)
    return {"input_ids": ids.masked_fill(ids < 0, peers.PAD), "attention_mask": (ids >= 0).long()}


def through_pipelines(models: dict, folder: Path, sources: list[str], tokens: int) -> tuple:
    """Two functions that translate all sentences, and return a tensor that identifies the translations."""
    from modeling_scratch.loading import load_tokenizers
    from modeling_scratch.model import translation_pipeline

    tokenizer, target = load_tokenizers(str(folder))
    try:
        other = importlib.import_module("before.model.translation_pipeline")
    except ModuleNotFoundError:  # of a commit before there was `model`
        other = importlib.import_module("before.translation_pipeline")

    def make(module: ModuleType, model: torch.nn.Module) -> Callable[[], torch.Tensor]:
        pipeline = module.ScratchTranslationPipeline(model, tokenizer, target)

        def run() -> torch.Tensor:
            found = pipeline(sources, num_beams=5, do_sample=False, max_new_tokens=tokens)
            return torch.tensor([[hash(each["translation_text"])] for each in found])

        return run

    return make(translation_pipeline, models["this"]), make(other, models["before"])


def make_case(case: str, models: dict, batch: dict, tokens: int) -> tuple[Callable, Callable]:
    """The function to time, and the one to compare it with."""
    settings = {"max_new_tokens": tokens, "do_sample": False, "num_beams": 1 if case in ("greedy", "recorded") else 5}
    if case == "opus":
        settings |= {"bad_words_ids": [[peers.PAD]], "forced_eos_token_id": peers.EOS}
    if case == "recorded":
        model = models["this"]
        model(**batch, decoder_input_ids=batch["input_ids"][:, :2], output_attentions=True)
    if case == "n-best":
        from modeling_scratch.model.batched_generation import generate_batch

        ids = [row[mask.bool()].tolist() for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
        run = lambda **more: generate_batch(models["this"], ids, **settings, **more)[0]  # noqa: E731
        return lambda: run(num_return_sequences=5, return_scores=True)[:, 0], lambda: run()[:, 0]
    return tuple(lambda model=model: model.generate(**batch, **settings) for model in models.values())


def compare(case: str, shape: str, size: int, pair: tuple[Callable, Callable], options: argparse.Namespace) -> str:
    first, second = pair
    found, expected = first(), second()
    width = min(found.shape[1], expected.shape[1])
    same = int((found[:, :width] == expected[:, :width]).all(dim=1).sum())
    times: list[tuple[float, float]] = []
    repeats = 1
    began = time.perf_counter()
    first()
    repeats = max(1, int(options.seconds / (time.perf_counter() - began)))
    for _ in range(options.rounds):
        spent = [0.0, 0.0]
        for _ in range(repeats):  # in turn, because a shared machine can change its speed within a second
            for place, run in enumerate(pair):
                began = time.perf_counter()
                run()
                spent[place] += (time.perf_counter() - began) / repeats
        times.append(tuple(spent))
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
    parser.add_argument("--folder", type=Path, help="a trained model instead of random weights")
    parser.add_argument("--sources", type=Path, help="its sentences, one a line")
    options = parser.parse_args()
    if (options.folder is None) != (options.sources is None):
        parser.error("give --folder and --sources together")
    package, rows = load_package(options.checkout), None
    if options.folder is not None:
        sources = options.sources.read_text().splitlines()
        from modeling_scratch.loading import load_tokenizers

        rows = load_tokenizers(str(options.folder))[0](sources).input_ids
    print(f"{peers.describe_machine()}; float32, {options.rounds} rounds, {options.tokens} new tokens a sentence\n")
    print("| case | shape | batch | ms | times as fast | sentences with the same tokens |\n|---|---|---|---|---|---|")
    for shape in options.shapes if rows is None else [options.folder.name]:
        models = make_pair(shape, package, options.folder)
        for case in options.cases:
            if case == "file":
                if rows is not None:
                    pair = through_pipelines(models, options.folder, sources, options.tokens)
                    print(compare(case, shape, len(sources), pair, options), flush=True)
                continue
            for size in options.batches if case != "recorded" else options.batches[-1:]:
                pair = make_case(case, copy.copy(models), make_batch(shape, size, rows), options.tokens)
                print(compare(case, shape, size, pair, options), flush=True)


if __name__ == "__main__":
    main()
