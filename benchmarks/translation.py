"""
Translates a whole file of sentences, from text to text: by this project, in one process and with a worker
per core, as `scratch translate` does for files; with MarianMTModel and the same weights, as in its documentation, in
batches of 64 in the order of the file; and with the model converted to CTranslate2, in float32 and in int8. In turn,
several rounds, with the BLEU of each and the share of its translations that are the same as ours.

    python benchmarks/translation.py FOLDER SOURCES REFERENCES

FOLDER holds a trained Scratch model. MarianMTModel is left out if Marian cannot express the model; it can express a
post-norm one without a final norm, for example.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import peers
import torch

Translate = Callable[[list[str], int], list[str]]
MOST_TOKENS = 100
BATCH_SIZE = 64  # MarianMT's
CT2_TOKENS = 512  # per batch: about the fastest of those tried, 256 to 4,096
THREADS = torch.get_num_threads()


def with_this_project(folder: str, workers: int | None) -> Translate:
    from modeling_scratch.apps.translate.workers import Pool, before_forking, worker_count
    from modeling_scratch.inference.translate import Translator
    from modeling_scratch.model.translations import best_texts

    with before_forking() as cores:
        translator = Translator.load([folder])
        pool = Pool([translator], worker_count(workers, translator.can_fork, cores), cores)

    def translate(sources: list[str], beams: int) -> list[str]:
        settings = {"num_beams": beams, "do_sample": False, "max_new_tokens": MOST_TOKENS}
        return best_texts(translator.translate(sources, **pool.sharing(translator), **settings))

    return translate


def with_marian(folder: str) -> Translate | None:
    from modeling_scratch.apps.convert import to_marian
    from modeling_scratch.errors import UserError
    from modeling_scratch.loading import load_tokenizers, load_translator

    try:
        model, (source, target) = to_marian(load_translator(folder)).eval(), load_tokenizers(folder)
    except UserError as error:
        print(error, file=sys.stderr)
        return None

    def translate(sources: list[str], beams: int) -> list[str]:
        found = []
        for first in range(0, len(sources), BATCH_SIZE):
            inputs = source(sources[first : first + BATCH_SIZE], return_tensors="pt", padding=True)
            inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            with torch.inference_mode():
                ids = model.generate(**inputs, num_beams=beams, do_sample=False, max_new_tokens=MOST_TOKENS)
            found += target.batch_decode(ids, skip_special_tokens=True)
        return found

    return translate


def with_ctranslate2(folder: str, quantization: str, work: Path) -> Translate:
    """A translator with one thread per core, each with its own batches."""
    import ctranslate2

    from modeling_scratch.inference.ctranslate2_engine import SETTINGS
    from modeling_scratch.loading import load_tokenizers

    out = work / quantization
    command = [sys.executable, "-m", "modeling_scratch", "convert", "ctranslate2", folder, str(out)]
    environment = os.environ | {"PYTHONPATH": str(peers.ROOT)}
    subprocess.run([*command, "--quantization", quantization], check=True, env=environment, stdout=subprocess.DEVNULL)
    source, target = load_tokenizers(folder)
    translator = ctranslate2.Translator(
        str(out), device="cpu", inter_threads=THREADS, intra_threads=1, compute_type=quantization
    )
    torch.set_num_threads(THREADS)  # CTranslate2 has set this process's threads to one
    settings = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
    settings |= {"max_decoding_length": MOST_TOKENS, "max_batch_size": CT2_TOKENS, "batch_type": "tokens"}

    def translate(sources: list[str], beams: int) -> list[str]:
        tokens = [source.convert_ids_to_tokens(ids) for ids in source(sources).input_ids]
        found = translator.translate_batch(tokens, **settings | {"beam_size": beams})
        ids = [target.convert_tokens_to_ids(each.hypotheses[0]) for each in found]
        return target.batch_decode(ids, skip_special_tokens=True)

    return translate


def compare(contenders: dict[str, Translate], beams: int, sources: list[str], references: list[str], rounds: int):
    from modeling_scratch.metrics import score

    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    outputs = {name: translate(sources, beams) for name, translate in contenders.items()}
    for _ in range(rounds):
        for name, translate in contenders.items():
            began = time.perf_counter()
            translate(sources, beams)
            seconds[name].append(time.perf_counter() - began)
    ours = outputs["modeling_scratch"]
    return {
        name: {
            "beams": beams,
            "seconds": seconds[name],
            "bleu": score(sources, output, references, final=False)["bleu"],
            "same": sum(mine == other for mine, other in zip(ours, output, strict=True)) / len(ours),
        }
        for name, output in outputs.items()
    }


def lines(found: dict, sentences: int) -> list[str]:
    ours, rows = found["modeling_scratch"]["seconds"], []
    for name, each in found.items():
        decoding = "greedy" if each["beams"] == 1 else f"beam {each['beams']}"
        rate = sentences / statistics.median(each["seconds"])
        times = peers.spread(peers.quotients(each["seconds"], ours))
        rows.append(f"| {decoding} | {name} | {rate:,.0f} | {times} | {each['bleu']:.2f} | {100 * each['same']:.1f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("sources", type=Path)
    parser.add_argument("references", type=Path)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    sources, references = (
        path.read_text(encoding="utf-8").splitlines() for path in (options.sources, options.references)
    )
    print(f"{peers.describe_machine()}; {len(sources)} sentences, {options.rounds} rounds\n")
    print("| | | sentences a second | times as fast as it | BLEU | same translations, % |")
    print("|---|---|---|---|---|---|", flush=True)
    found = []
    with tempfile.TemporaryDirectory() as work:
        contenders = {
            "modeling_scratch": with_this_project(options.folder, workers=None),  # first: it forks
            "modeling_scratch, one process": with_this_project(options.folder, workers=0),
            f"MarianMT, batches of {BATCH_SIZE}": with_marian(options.folder),
            "CTranslate2, float32": with_ctranslate2(options.folder, "float32", Path(work)),
            "CTranslate2, int8": with_ctranslate2(options.folder, "int8", Path(work)),
        }
        contenders = {name: translate for name, translate in contenders.items() if translate}
        for beams in options.beams:
            found.append(compare(contenders, beams, sources, references, options.rounds))
            print("\n".join(lines(found[-1], len(sources))), flush=True)
    peers.write_json(found, options.json)


if __name__ == "__main__":
    main()
