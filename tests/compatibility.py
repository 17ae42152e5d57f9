"""
Loads small models under every release of Transformers 5, from a folder and from a Hub. A development script, which
downloads the releases.

    python tests/compatibility.py                          # every minor release
    python tests/compatibility.py --only 5.0.0 5.24.0      # some
    python tests/compatibility.py --folder runs/embedded   # a model of your own

Prints a table of what gives the same results as the installed release: loading with `trust_remote_code`, logits (within
1e-6), greedy search, beam search with 5 beams, our own search loops, the inherited ones, n-best lists with scores, and
`pipeline` with the model's task, translation or text2text-generation. The Hub is a server on 127.0.0.1. `renamed` is
the installed release with every private method of GenerationMixin renamed, as a later release might do. Each release
gets its own environment, with the PyTorch installed here.
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASES = (
    "4.57.6 5.0.0 5.1.0 5.2.0 5.3.0 5.4.0 5.5.4 5.6.2 5.7.0 5.8.1 5.9.0 5.10.4 5.11.0 5.12.1 5.13.1 5.14.1 5.15.1"
)
RELEASES = f"{RELEASES} 5.16.1 5.17.0 5.18.0 5.19.0 5.20.2 5.21.1 5.22.2 5.23.0 5.24.0".split()
# PyTorch and its dependencies that Transformers does not have.
TORCH = ("torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec")
SENTENCES = ["The cat sleeps.", "The dog can see the old cat.", "", "We run."]
COLUMNS = ("loads", "logits", "greedy", "beam 5", "own search", "inherited", "n-best", "pipeline")

# Runs in the environment of a release. Prints the results of each model by column, or its error.
PROBE = """
import json, sys, traceback
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
names, sentences = json.loads(sys.argv[1]), json.loads(sys.argv[2])
filled, trusted = [sentence for sentence in sentences if sentence], {"trust_remote_code": True}
def probe(name):
    source = target = AutoTokenizer.from_pretrained(name, **trusted)
    inputs = source(filled, padding=True, return_tensors="pt")
    model = AutoModelForSeq2SeqLM.from_pretrained(name, **trusted).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    if model.config.decoder_vocab_size is not None:
        target = AutoTokenizer.from_pretrained(name, subfolder="target_tokenizer", **trusted)
    yield "loads", inputs.input_ids.tolist()
    with torch.no_grad():
        yield "logits", model(**inputs, decoder_input_ids=torch.arange(6).repeat(len(filled), 1)).logits.tolist()
    for title, beams in (("greedy", 1), ("beam 5", 5)):
        output = model.generate(**inputs, max_new_tokens=20, num_beams=beams)
        yield title, target.batch_decode(output, skip_special_tokens=True)
    output = model.generate(**inputs, max_new_tokens=3, return_dict_in_generate=True)
    assert type(output).__name__ == "SearchOutput", f"{type(output).__name__} is not of our own search"
    yield "own search", True
    output = model.generate(**inputs, max_new_tokens=20, return_dict_in_generate=True, output_attentions=True)
    assert type(output).__name__ != "SearchOutput", "our own search does not return attentions"
    yield "inherited", target.batch_decode(output.sequences, skip_special_tokens=True)
    task = next(iter(model.config.custom_pipelines))
    piped = pipeline(task, model=name, **trusted)
    yield "n-best", piped(sentences, num_beams=4, num_return_sequences=3, max_new_tokens=20)
    yield "pipeline", [task, piped(sentences, max_new_tokens=20)]
found = {}
for name in names:
    found[name] = {}
    try:
        for title, value in probe(name):
            found[name][title] = value
    except BaseException as error:
        found[name]["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def make_environment(release: str, folder: Path) -> Path:
    """Make an environment with this release. Returns its Python interpreter."""
    python = folder / release / "bin" / "python"
    if not (folder / release / "made").exists():
        packages = Path(sysconfig.get_paths()["purelib"])
        links = folder / "links"
        links.mkdir(parents=True, exist_ok=True)
        for name in [*TORCH, "typing_extensions.py", *(path.name for path in packages.glob("torch-*.dist-info"))]:
            if not (links / name).exists():
                (links / name).symlink_to(packages / name)
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder / release)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", f"transformers=={release}"]
        subprocess.run(pip, check=True)
        (site,) = (folder / release / "lib").glob("python*/site-packages")
        (site / "links.pth").write_text(str(links))
        (folder / release / "made").touch()
    return python


def rename_private_methods(folder: Path) -> None:
    """Make a copy of the installed Transformers with every private method of GenerationMixin renamed."""
    import transformers
    from transformers import GenerationMixin

    installed = Path(transformers.__file__).parent
    private = [name for name in vars(GenerationMixin) if re.fullmatch(r"_[a-z]\w*", name)]
    private = [name for name in private if inspect.isroutine(inspect.getattr_static(GenerationMixin, name))]
    pattern = re.compile(rf"\b({'|'.join(private)})\b")
    assert len(private) > 20
    generation = folder / "transformers" / "generation"
    generation.mkdir(parents=True)
    for path in installed.iterdir():
        if path.name != "generation":
            (folder / "transformers" / path.name).symlink_to(path)
    for path in (installed / "generation").iterdir():
        if path.suffix == ".py":
            text = pattern.sub(r"\1_renamed", path.read_text(encoding="utf-8"))
            (generation / path.name).write_text(text, encoding="utf-8")
        elif path.name != "__pycache__":
            (generation / path.name).symlink_to(path)
    for path in installed.parent.glob("transformers-*.dist-info"):
        (folder / path.name).symlink_to(path)


def probe(python: str | Path, names: list[str], work: Path, **environment: str) -> list[dict]:
    """Run PROBE on folders or repositories: the results of each by column."""
    settings = {"PYTHONPATH": "", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    # A new cache, since Transformers caches the code that it runs.
    settings |= {"HF_HOME": tempfile.mkdtemp(prefix="home-", dir=work)}
    command = [str(python), "-c", PROBE, json.dumps(names), json.dumps(SENTENCES)]
    # Not in the project's root, where it could be imported.
    options = {"cwd": work, "env": os.environ | settings | environment, "stdin": subprocess.DEVNULL}
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode:
        return [{"error": result.stderr.strip().splitlines()[-1]}] * len(names)
    return list(json.loads(result.stdout.splitlines()[-1]).values())


def compare(found: dict, expected: dict) -> list[bool]:
    """Whether each column has the expected result."""

    def same(first, second) -> bool:
        if isinstance(first, list) and isinstance(second, list):
            return len(first) == len(second) and all(map(same, first, second))
        if isinstance(first, dict) and isinstance(second, dict):
            return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
        if isinstance(first, float) and isinstance(second, float):
            return abs(first - second) <= 1e-6 * max(1.0, abs(second))
        return first == second

    return [column in found and same(found[column], expected[column]) for column in COLUMNS]


def make_models(folder: Path) -> dict[str, Path]:
    """Save small models with tokenizers. Their random weights are large, so that every change alters the output."""
    import torch

    from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
    from modeling_scratch.data.tokenizer import train_tokenizer
    from modeling_scratch.loading import save_tokenizers
    from modeling_scratch.model.configuration_scratch import TEXT2TEXT, pipelines_for

    source = train_tokenizer(iter([SENTENCES * 3]), 300)
    target = train_tokenizer(iter([[sentence.swapcase() for sentence in SENTENCES] * 3]), 290)
    shape = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 48}
    shape |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": len(source), "init_std": 0.3}
    two = {"decoder_vocab_size": len(target), "share_encoder_decoder_embeddings": False}
    choices = {
        "default": {},
        "text2text": {"custom_pipelines": pipelines_for(TEXT2TEXT)},
        "post": {"norm_position": "post", "final_norm": "decoder", "position_embedding_type": "learned"},
        "modern": two | {"position_embedding_type": "rotary", "norm_type": "rms_norm", "gated_ffn": True},
        "alibi": {"position_embedding_type": "alibi", "share_layers": True, "lm_head_bias": True},
    }
    for name, fields in choices.items():
        torch.manual_seed(0)
        model = ScratchForConditionalGeneration(ScratchConfig(**(shape | fields)))
        model.save_pretrained(folder / name)
        save_tokenizers(source, target if "decoder_vocab_size" in fields else source, folder / name)
    return {name: folder / name for name in choices}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=RELEASES, help="these releases, and always the renamed one")
    parser.add_argument("--folder", type=Path, help="a model instead of the small ones")
    parser.add_argument("--environments", type=Path, help="where to keep the environments for later runs")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from loopback_client import lasting_client
    from loopback_hub import ADA, LoopbackHub

    failed = 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        environments = (options.environments or work / "environments").resolve()
        models = {options.folder.name: options.folder.resolve()} if options.folder else make_models(work / "models")
        names = {"folder": list(map(str, models.values())), "hub": [f"ada/{title}" for title in models]}
        rename_private_methods(work / "renamed")
        with LoopbackHub() as hub, lasting_client(hub, work / "home") as client:
            for title, folder in models.items():
                client(client_push, folder=str(folder), repository=f"ada/{title}")
            expected = probe(sys.executable, names["folder"], work, HF_HUB_OFFLINE="1")
            if errors := [answer["error"] for answer in expected if "error" in answer]:
                sys.exit(f"the installed release: {errors[0]}")
            print("| release | model | from | " + " | ".join(COLUMNS) + " |\n" + "|---" * (3 + len(COLUMNS)) + "|")
            for release in [*options.only, "renamed"]:
                python = sys.executable if release == "renamed" else make_environment(release, environments)
                overlay = {"PYTHONPATH": str(work / "renamed")} if release == "renamed" else {}
                for where, settings in (
                    ("folder", {"HF_HUB_OFFLINE": "1"}),
                    ("hub", hub.environment(ADA, work / f"home of {release}")),
                ):
                    found = probe(python, names[where], work, **settings, **overlay)
                    for title, each, wanted in zip(models, found, expected, strict=True):
                        right = compare(each, wanted)
                        failed += not all(right) and not release.startswith("4.")
                        cells = " | ".join("yes" if column else "no" for column in right)
                        print(f"| {release} | {title} | {where} | {cells} |", flush=True)
                    if errors := {answer["error"] for answer in found if "error" in answer}:
                        print("\n".join(f"  {error}" for error in sorted(errors)), flush=True)
    return 1 if failed else 0


def client_push(folder: str, repository: str) -> None:
    from huggingface_hub import HfApi

    HfApi().create_repo(repository)
    HfApi().upload_folder(repo_id=repository, folder_path=folder)


if __name__ == "__main__":
    raise SystemExit(main())
