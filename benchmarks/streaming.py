"""
Measure memory and speed of reading a stream: peak resident size and target tokens a second for streams of different
sizes, each in its own process, in turn, for several rounds. Pairs are generated as they are read. Prints a table.

    python benchmarks/streaming.py                             # 30,000 and 3,000,000 pairs
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

AT_LEAST = 200_000  # pairs read, for a rate
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def read(pairs: int) -> dict[str, float]:
    """
    Read a stream of this many pairs as training does, a small one repeatedly.

    Returns:
        peak and before: the most mebibytes, in all and before reading began; rate: target tokens a second after the
        first batch.
    """
    from modeling_scratch.data.batches import PairCollator
    from modeling_scratch.data.corpus import make_corpus
    from modeling_scratch.data.streaming import Position, StreamReader, open_stream
    from modeling_scratch.data.tokenizer import PairTokenizer, train_tokenizer
    from modeling_scratch.model.masking import IGNORE_INDEX
    from modeling_scratch.recipe.schema import DataSection

    texts = [text for pair in make_corpus(5000, 0, 0)["train"] for text in pair.values()]
    tokenizer = PairTokenizer(*[train_tokenizer(iter([texts]), 700)] * 2, 256, 256)
    section = DataSection(streaming=True).model_copy(update={"embedded_size": pairs})  # more than a recipe may have
    stream = open_stream(section, seed=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began, tokens, seen = None, 0, 0
    for batch, position in StreamReader(stream, tokenizer, PairCollator(0), 4096, 20_000, 0, 0, 1, Position()):
        if position.passes and seen >= AT_LEAST:
            break
        if began is None:
            began = time.perf_counter()
            continue
        tokens, seen = tokens + int((batch["labels"] != IGNORE_INDEX).sum()), seen + len(batch["labels"])
    rate = tokens / (time.perf_counter() - began)
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "before": before, "rate": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[30_000, 3_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.read)))
        return
    found: dict[int, list[dict]] = {size: [] for size in options.sizes}
    for _ in range(options.rounds):
        for size in options.sizes:
            command = [sys.executable, __file__, "--read", str(size)]
            found[size].append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    print("| pairs | peak, MiB | before reading, MiB | target tokens a second |")
    print("|---|---|---|---|")
    for size, rounds in found.items():
        middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        print(f"| {size:,} | {middle['peak']:,.0f} | {middle['before']:,.0f} | {middle['rate']:,.0f} |")
    first, last = (
        statistics.median(each["peak"] for each in found[size]) for size in (options.sizes[0], options.sizes[-1])
    )
    print(f"\nPeak, last to first: {last / first:.3f}")


if __name__ == "__main__":
    main()
