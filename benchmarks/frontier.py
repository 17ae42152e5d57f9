"""
Measures BLEU (sacreBLEU's 13a, cased) against sentences a second on all cores, from text to text: tokenizing and
detokenizing count, loading the model does not. Prints a table with the bytes of the weights on disk, and draws a plot.

    python benchmarks/frontier.py SOURCES REFERENCES NAME=FOLDER... --json FILE --plot FILE
    python benchmarks/frontier.py --redraw FILE --plot FILE     # from what --json wrote

Each model of this project is run by this project in PyTorch, with a process per core, and in CTranslate2, in float32
and with 8 bits; and by CTranslate2's own calls, with the same conversions and settings and a thread per core. All but
the number of beams is as the model was saved. Further programs:

--marianmt NAME: MarianMTModel with the weights of this one of the models, which must be one that Marian can express,
  such as a post-norm model without a final norm; in batches of 64 in the order of the file, as in its documentation.
--marian FOLDER: Marian in C++ in float32 and with 8 bits, with the model that `benchmarks/time_to_bleu.py` trained by
  `--work FOLDER --only-marian MINUTES`.
--commit FOLDER: the first model by `scratch translate`, in this checkout and in FOLDER, which has another commit. The
  time for one line is subtracted from that of the whole command; a second table has the times themselves.

Each contender has a process of its own; they take turns, for several rounds.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The processes that translate run this file too, some without PyTorch, and Marian's without this project.
ROOT = Path(__file__).resolve().parent.parent
CORES = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
MARIANMT_BATCH = 64
CTRANSLATE2_TOKENS = 512  # per batch: about the fastest of those tried, 256 to 4,096
COPIES = 3  # of the lines for a whole command, since it starts in several seconds
PYTORCH, CTRANSLATE2 = "this project, PyTorch", "this project, CTranslate2"
OWN_CALLS, MARIANMT, MARIAN = "CTranslate2's own calls", "MarianMTModel", "Marian in C++"
COMMAND = "scratch translate"

Translate = Callable[[list[str], int], list[str]]


def pytorch(folder: str) -> Translate:
    from modeling_scratch.apps.translate.workers import Pool, before_forking, worker_count
    from modeling_scratch.inference.translate import Translator
    from modeling_scratch.model.translations import best_texts

    with before_forking() as cores:
        translator = Translator.load([folder])
        pool = Pool([translator], worker_count(None, translator.can_fork, cores), cores)

    def translate(sources: list[str], beams: int) -> list[str]:
        settings = {"num_beams": beams, "do_sample": False}
        return best_texts(translator.translate(sources, **pool.sharing(translator), **settings))

    return translate


def ctranslate2(folder: str) -> Translate:
    from modeling_scratch.inference.ctranslate2_engine import CTranslate2Engine
    from modeling_scratch.model.translations import best_texts

    engine = CTranslate2Engine(folder)
    return lambda sources, beams: best_texts(engine.translate(sources, num_beams=beams))


def own_calls(folder: str) -> Translate:
    import ctranslate2
    from tokenizers import Tokenizer

    translator = ctranslate2.Translator(folder, device="cpu", inter_threads=CORES, intra_threads=1)
    settings = json.loads(Path(folder, "generation.json").read_text(encoding="utf-8"))
    settings |= {"max_batch_size": CTRANSLATE2_TOKENS, "batch_type": "tokens"}
    files = Path(folder, "tokenizer.json"), Path(folder, "target_tokenizer", "tokenizer.json")
    source, target = (Tokenizer.from_file(str(file if file.exists() else files[0])) for file in files)

    def translate(sources: list[str], beams: int) -> list[str]:
        tokens = [encoding.tokens for encoding in source.encode_batch(sources)]
        found = translator.translate_batch(tokens, **settings | {"beam_size": beams})
        return target.decode_batch([list(map(target.token_to_id, each.hypotheses[0])) for each in found])

    return translate


def marianmt(folder: str) -> Translate:
    import torch

    from modeling_scratch.apps.convert import to_marian
    from modeling_scratch.loading import load_tokenizers, load_translator

    model, (source, target) = to_marian(load_translator(folder)).eval(), load_tokenizers(folder)

    def translate(sources: list[str], beams: int) -> list[str]:
        found = []
        for first in range(0, len(sources), MARIANMT_BATCH):
            inputs = source(sources[first : first + MARIANMT_BATCH], return_tensors="pt", padding=True)
            inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            with torch.inference_mode():
                ids = model.generate(**inputs, num_beams=beams, do_sample=False)
            found += target.batch_decode(ids, skip_special_tokens=True)
        return found

    return translate


def marian(model: str, data: str) -> Translate:
    """In an environment with pymarian and tokenizers. `data` is the folder that `trainers.prepare` wrote."""
    from pymarian import Translator
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(data, "tokenizer", "tokenizer.json")))
    batches = {"mini_batch": 64, "maxi_batch": 100, "maxi_batch_sort": "src", "workspace": 512}
    options = batches | {"vocabs": [str(Path(data, "vocabulary.yml"))] * 2, "cpu_threads": CORES}
    options |= {"quiet": True, "quiet_translation": True}
    translators: dict[int, Any] = {}

    def translate(sources: list[str], beams: int) -> list[str]:
        if beams not in translators:
            search = {"skip_cost": True} if beams == 1 else {"beam_size": beams, "normalize": 1}
            translators[beams] = Translator(models=model, **options | {"beam_size": 1} | search)
        rows = [" ".join(each.tokens) for each in tokenizer.encode_batch(sources, add_special_tokens=False)]
        found = translators[beams].translate(rows)
        return tokenizer.decode_batch([list(map(tokenizer.token_to_id, row.split())) for row in found])

    return translate


def clocked(translate: Translate) -> Callable[[list[str], int], dict[str, Any]]:
    def measure(sources: list[str], beams: int) -> dict[str, Any]:
        began = time.perf_counter()
        translations = translate(sources, beams)
        return {"seconds": time.perf_counter() - began, "translations": translations}

    return measure


def command(checkout: str, folder: str) -> Callable[[list[str], int], dict[str, Any]]:
    """
    `scratch translate` of a checkout, with its environment if it has one: also the seconds of the whole command for
    COPIES of the lines and those for the first line, and the peak mebibytes for this line.
    """
    python = Path(checkout, ".venv", "bin", "python")
    run = [str(python if python.exists() else sys.executable), "-m", "modeling_scratch", "translate", folder]

    def translated(sources: list[str], beams: int) -> tuple[list[str], float, float]:
        with tempfile.TemporaryDirectory() as work:
            texts, output = Path(work, "texts"), Path(work, "output")
            texts.write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")
            options = ["--input", str(texts), "--output", str(output), "--num-beams", str(beams)]
            began = time.perf_counter()
            process = subprocess.Popen([*run, *options], cwd=checkout, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
            told = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
            if status:
                raise SystemExit(f"{' '.join(run)} failed: {told.decode()}")
            return output.read_text(encoding="utf-8").splitlines(), seconds, usage.ru_maxrss / 1024

    def measure(sources: list[str], beams: int) -> dict[str, Any]:
        _, line, mebibytes = translated(sources[:1], beams)
        translations, whole, _ = translated(COPIES * sources, beams)
        times = {"seconds": (whole - line) / COPIES, "whole": whole, "line": line, "mebibytes": mebibytes}
        return {"translations": translations[: len(sources)], **times}

    return measure


MAKERS = {maker.__name__: maker for maker in (pytorch, ctranslate2, own_calls, marianmt, marian, command)}


def serve(name: str, sources: str, *arguments: str) -> None:
    """Translate with the beams of each line of standard input, and answer with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the libraries print
    sys.path.insert(0, str(ROOT))
    made = MAKERS[name](*arguments)
    measure, texts = made if name == "command" else clocked(made), read(sources)
    for line in sys.stdin:
        print(json.dumps(measure(texts, int(line))), file=answers, flush=True)


def read(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")


@dataclass
class Contender:
    """
    A process that translates.

    Args:
        kind: of the weights.
        bytes: of the weights on disk.
        maker: of MAKERS, with its arguments.
        python: that of its environment.
    """

    model: str
    program: str
    kind: str
    bytes: int
    maker: str
    arguments: tuple[str, ...]
    python: str = sys.executable

    @contextlib.contextmanager
    def running(self, sources: str) -> Iterator[Callable[[int], dict[str, Any]]]:
        """Starts the process, and yields a function of the number of beams, which returns its answer."""
        run = [self.python, __file__, "--serve", self.maker, sources, *self.arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(run, text=True, encoding="utf-8", **pipes) as process:

            def answer(beams: int) -> dict[str, Any]:
                print(beams, file=process.stdin, flush=True)
                if not (line := process.stdout.readline()):
                    raise SystemExit(f"{self.program}, {self.kind}, with {self.model} ended")
                return json.loads(line)

            yield answer  # at the end, its standard input is closed, which ends it


def contenders(options: argparse.Namespace, work: Path) -> list[Contender]:
    """All of them, with what they need prepared in the folder `work`."""
    from modeling_scratch.apps.convert.ctranslate2 import write_ctranslate2

    models = {name: str(Path(folder).resolve()) for name, folder in (each.split("=", 1) for each in options.models)}
    if options.marianmt not in {None, *models}:
        raise SystemExit(f"--marianmt {options.marianmt}: none of the models {', '.join(models)}")
    found = []
    for number, (name, folder) in enumerate(models.items()):
        size = bytes_of(*Path(folder).glob("*.safetensors"))
        found.append(Contender(name, PYTORCH, "float32", size, "pytorch", (folder,)))
        for kind in ("float32", "int8"):
            out = work / f"{number}-{kind}"
            write_ctranslate2(folder, out, kind)
            for program, maker in ((CTRANSLATE2, "ctranslate2"), (OWN_CALLS, "own_calls")):
                found.append(Contender(name, program, kind, bytes_of(out / "model.bin"), maker, (str(out),)))
        if name == options.marianmt:
            found.append(Contender(name, MARIANMT, "float32", size, "marianmt", (folder,)))
        if options.commit and number == 0:
            earlier = work / "earlier"  # without what an earlier commit may not read
            shutil.copytree(folder, earlier, ignore=shutil.ignore_patterns("confidence.json", "checkpoints"))
            runs = {COMMAND: (str(ROOT), folder), options.earlier: (str(options.commit.resolve()), str(earlier))}
            found += [Contender(name, program, "float32", size, "command", run) for program, run in runs.items()]
    if options.marian:
        import trainer_commands
        import trainers

        python = trainers.install(MARIAN, trainer_commands.TRAINERS[MARIAN], options.marian.resolve())
        data = options.marian.resolve() / "data"
        small = work / "marian.bin"
        convert = [python, "-m", "pymarian", "convert", "--from", data / "marian.npz", "--to", small]
        subprocess.run([*convert, "--gemm-type", "intgemm8"], check=True, stderr=subprocess.DEVNULL)
        for kind, weights in (("float32", data / "marian.npz"), ("int8", small)):
            arguments = (str(weights), str(data))
            found.append(Contender("Marian's", MARIAN, kind, bytes_of(weights), "marian", arguments, python))
    return found


def bytes_of(*files: Path) -> int:
    return sum(file.stat().st_size for file in files)


def measure(all_contenders: list[Contender], options: argparse.Namespace) -> list[dict[str, Any]]:
    """A point for each contender and number of beams: its fields, BLEU, and lists of what the rounds measured."""
    from sacrebleu import corpus_bleu

    references, points = read(options.references), []
    with contextlib.ExitStack() as stack:
        for each in all_contenders:
            answer = stack.enter_context(each.running(options.sources))
            about = {"model": each.model, "program": each.program, "kind": each.kind, "bytes": each.bytes}
            for beams in options.beams:
                translations = answer(beams)["translations"]  # loads the model too
                bleu = corpus_bleu(translations, [references]).score
                print(f"{each.model}, {each.program}, {each.kind}, {beams}: {bleu:.2f}", file=sys.stderr, flush=True)
                points.append((answer, {**about, "beams": beams, "bleu": bleu, "translations": translations}))
        for _ in range(options.rounds):
            for answer, point in points:
                for name, value in answer(point["beams"]).items():
                    if name != "translations":
                        point.setdefault(name, []).append(value)
    found = [point for _, point in points]
    for point in found:
        if other := counterpart(found, point, PYTORCH, "model", "beams"):
            point["same"] = sum(map(str.__eq__, point["translations"], other["translations"])) / len(references)
    return [{name: value for name, value in point.items() if name != "translations"} for point in found]


def counterpart(
    points: list[dict[str, Any]], point: dict[str, Any], program: str, *fields: str
) -> dict[str, Any] | None:
    """The point of this program that has the same fields."""
    found = (other for other in points if other["program"] == program)
    return next((other for other in found if all(other[field] == point[field] for field in fields)), None)


def table(found: dict[str, Any]) -> list[str]:
    import peers

    points, earlier = found["points"], found["earlier"]
    rows = [
        "| model | program | weights | MB | decoding | BLEU | same translations as PyTorch, % | sentences a second | "
        "times as fast as CTranslate2's own calls | times as fast as the earlier commit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for point in points:

        def times(program: str, *fields: str, point=point) -> str:
            other = counterpart(points, point, program, *fields)
            return peers.spread(peers.quotients(other["seconds"], point["seconds"])) if other else ""

        cells = [point["model"], point["program"], point["kind"], f"{point['bytes'] / 1e6:.1f}", decoding(point)]
        cells += [f"{point['bleu']:.2f}", f"{100 * point['same']:.1f}" if "same" in point else ""]
        cells += [f"{speed(point, found['sentences']):,.0f}", times(OWN_CALLS, "model", "kind", "beams")]
        rows.append(f"| {' | '.join([*cells, times(earlier, 'model', 'beams')])} |")
    if earlier:
        many = f"{COPIES * found['sentences']:,} lines, seconds"
        rows += ["", f"| whole command | decoding | {many} | one line, seconds | one line, MiB |"]
        rows.append("|---|---|---|---|---|")
        for point in points:
            if "whole" in point:
                cells = [f"{statistics.median(point[name]):.1f}" for name in ("whole", "line", "mebibytes")]
                rows.append(f"| {' | '.join([point['program'], decoding(point), *cells])} |")
    return rows


def decoding(point: dict[str, Any]) -> str:
    return "greedy" if point["beams"] == 1 else f"beam {point['beams']}"


def speed(point: dict[str, Any], sentences: int) -> float:
    """Sentences a second, in the median round."""
    return sentences / statistics.median(point["seconds"])


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="?")
    parser.add_argument("references", nargs="?")
    parser.add_argument("models", nargs="*", metavar="NAME=FOLDER", help="models of this project")
    parser.add_argument("--marianmt", metavar="NAME", help="the model to run with MarianMTModel too")
    parser.add_argument("--marian", type=Path, metavar="FOLDER", help="where time_to_bleu.py trained with Marian")
    parser.add_argument("--commit", type=Path, metavar="FOLDER", help="a checkout of another commit")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--redraw", metavar="FILE", help="measure nothing; read this file of figures")
    parser.add_argument("--plot", type=Path, help="also draw them into this PNG file")
    options = parser.parse_args()
    if not options.redraw and not options.models:
        parser.error("name SOURCES, REFERENCES and models, or --redraw FILE")
    import figures
    import peers

    if options.redraw:
        found = json.loads(Path(options.redraw).read_text(encoding="utf-8"))
    else:
        found = {"machine": peers.describe_machine(), "sentences": len(read(options.sources))}
        found["earlier"] = options.earlier = options.commit and f"{COMMAND} of {options.commit.name}"
        with tempfile.TemporaryDirectory() as work:
            found["points"] = measure(contenders(options, Path(work)), options)
        peers.write_json(found, options.json)
    print(f"{found['machine']}; {found['sentences']} sentences\n", "\n".join(table(found)), sep="\n")
    if options.plot:
        figures.frontier(options.plot, found["points"], [speed(point, found["sentences"]) for point in found["points"]])


if __name__ == "__main__":
    main()
