"""The code on the pages of docs/ and in the README runs as written, except that trainings end after two updates."""

import csv
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import openpyxl
import pytest
from conftest import ROOT, quick_run
from test_docs import PAGES
from transformers import AutoTokenizer

from modeling_scratch.apps.convert import to_marian
from modeling_scratch.loading import load_tokenizers, load_translator

# What is not run here, by how the line begins, and where it is run instead or why it cannot be.
NOT_RUN = {
    "(pip|npm|pre-commit|ONNXRUNTIME_NODE_INSTALL=skip npm|hf auth|hf download|source|make|uv|UV_.* uv|hf jobs) ": (
        "sets up an environment: test_jobs.py"
    ),
    "jupyter lab ": "tests/commands/test_notebook.py",
    "(accelerate launch|    train.py|sbatch|torchrun|export (ACCELERATE|TORCH)|docker|cp configuration/serve) ?": (
        "several processes, machines or containers: tests/training/test_many_processes.py"
    ),
    r"from ray\.|TorchTrainer\(": "Ray, which is not installed: docs/lab/scaling.md",
    "python train.py --dry-run ": "data that is only on the Hub: tests/apps/experiments",
    "scratch train --config multi30k|python docs/jobs/publish.py ": "the same: tests/hub/test_publish.py",
    r"(curl|scratch serve|LibreTranslateAPI|print\(client\.)": "a running service: tests/apps/serve, tests/hub",
    r"scratch upload (?!.*--dry-run)|.*\bhub\.repository=|hf upload|.*push_to_hub\(": "the Hub: tests/hub",
    r"scratch export (web|transformersjs)": "a browser or Node.js: tests/apps/web",
    r"scratch evaluate .*\bcomet\b": "COMET's own environment: tests/test_metrics.py",
    r"scratch (improve|distill) (?!.*--dry-run)|.*-student|.*runs/de-en": "a long run: tests/apps/experiments",
    r"python docs/learn/mistakes.py [a-z]": "a training of its own: test_learn_pages.py",
    r"python docs/learn/from_tutorial.py ": "the weights of a tutorial: tests/model/test_from_tutorial.py",
    r"scratch convert torch weights.pt": "the weights of a tutorial: tests/apps/convert",
    r".*\.\.\. |.*runs/inflection": "not complete: tests/apps/test_without_languages.py",
    "yes ": "an error, which the page explains",
    "scratch corpus from-system ": "the catalogs of a machine: tests/apps/corpora/test_harvest.py",
    "scratch corpus split ": "more pairs: tests/apps/corpora/test_splitting.py",
    r"scratch train --profile|.*runs/leak|.*runs/repeated|.*runs/stuck|.*runs/dropout": "as other trainings here",
}
MARIAN = "Helsinki-NLP/opus-mt-en-de"
MARIANS_SHAPE = "{d_model: 32, encoder_layers: 1, decoder_layers: 1, norm_position: post, final_norm: false}"
SMALL = "model.overrides={d_model: 32, encoder_layers: 1, decoder_layers: 1, dropout: 0}"
SCRATCH = f"""#!/bin/bash
more=()
if [ "$1" = train ]; then
    more=(optimization.max_epochs=null optimization.max_steps=2 evaluation.max_new_tokens=8)
    [[ "$*" = *"--config own-text"* ]] && more+=("{SMALL}" tokenizer.vocab_size=400)
fi
exec {sys.executable} -m modeling_scratch "$@" "${{more[@]}}"
"""


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the content of each block of code, without lines that are not run here, and older code."""
    text, found = page.read_text(encoding="utf-8"), []
    for match in re.finditer(r"^```(bash|python)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        if text[: match.start()].strip().rpartition("\n\n")[2].startswith(("In Transformers 4", "In Simple Transf")):
            continue
        lines = match[2].replace("\\\n", " ").split("\n")
        found.append((match[1], "\n".join(line for line in lines if not any(re.match(each, line) for each in NOT_RUN))))
    return found


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A folder with the models and files that pages name, and programs `scratch` and `python` for the search path."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "bin").mkdir()
    for name, script in {"scratch": SCRATCH, "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n'}.items():
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(stat.S_IRWXU)
    (folder / ".venv").symlink_to(sys.prefix)
    for name in ("train.py", "configuration"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", folder / "docs")
    shell("scratch train\nscratch train --config dates", folder, folder)
    shutil.copytree(folder / "runs" / "embedded", folder / "user" / "name")
    run = quick_run(folder / "start", f"model.overrides={MARIANS_SHAPE}", "optimization.max_steps=2")
    to_marian(load_translator(str(run))).save_pretrained(folder / MARIAN)
    load_tokenizers(str(run))[0].save_pretrained(folder / MARIAN)
    write_files(folder)
    return folder


def write_files(folder: Path) -> None:
    pairs = [{"en": f"The {word} sleeps.", "de": f"Der {word} schläft."} for word in map(str, range(400))]
    (folder / "shards").mkdir()
    for name, rows in {"train": pairs, "validation": pairs[:20], "test": pairs[:20], "shards/1": pairs}.items():
        lines = (json.dumps({"translation": row}) for row in rows)
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    shutil.copy(folder / "test.jsonl", folder / "held-out.jsonl")
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("input_text", "target_text"), *(row.values() for row in pairs)])
    for name, rows in {"train": pairs, "dev": pairs[:20], "test": pairs[:20]}.items():
        lines = ("\t".join((row["en"].replace(" ", ""), " ".join(row["de"][:9]))) for row in rows)
        (folder / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    for name in ("mine", "general", *(f"{kind}/{split}" for kind in ("own", "other") for split in ("train", "test"))):
        (folder / name).parent.mkdir(exist_ok=True)
        for language in ("en", "de"):
            text = "".join(f"{row[language]}\n" for row in pairs)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    units = "".join(
        f'<tu><tuv xml:lang="en-US"><seg>{row["en"]}</seg></tuv><tuv xml:lang="de"><seg>{row["de"]}</seg></tuv></tu>\n'
        for row in pairs
    )
    (folder / "memory.tmx").write_text(f'<tmx version="1.4"><body>\n{units}</body></tmx>', encoding="utf-8")
    (folder / "catalogs").mkdir()
    (folder / "catalogs" / "app.po").write_text('msgid "Cat"\nmsgstr "Katze"\n', encoding="utf-8")
    book = openpyxl.Workbook()
    for row in (("English", "German"), ("dog", "Hund")):
        book.active.append(row)
    book.save(folder / "terms.xlsx")
    (folder / "in.txt").write_text("The cat sleeps.\nWe run.\n", encoding="utf-8")
    (folder / "page.md").write_text("# Cats\n\nThe *old* cat sleeps.\n", encoding="utf-8")


def shell(code: str, folder: Path, things: Path) -> None:
    path = os.pathsep.join((str(things / "bin"), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(["bash", "-ec", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{code}\n{result.stdout}\n{result.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, things, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(things, folder, symlinks=True)
    monkeypatch.chdir(folder)
    if page.stem == "sequences":
        shutil.rmtree("runs/dates")  # which the page makes
    if page.stem == "symptoms":
        shell("scratch corpus embedded my-text", folder, things)
    if page.stem == "tutorials":
        shutil.copytree("runs/embedded", "mine")
    if page.stem == "improve":  # whose files are in folders of these names
        for kind, name in (("own", "mine"), ("other", "general")):
            (folder / kind).rename(folder / name)
            for language in ("en", "de"):
                shutil.copy(folder / name / f"test.{language}", folder / name / f"validation.{language}")
    names = {"__name__": "page", "page": "<p>The cat sleeps.</p>"}
    if page.stem in ("alignments", "model", "hub"):
        tokenizer = AutoTokenizer.from_pretrained("runs/embedded")
        batch = tokenizer(["The cat sleeps."], text_target=["Die Katze schläft."], return_tensors="pt")
        names |= {"model": load_translator("runs/embedded"), "target_tokenizer": tokenizer, "batch": batch}
    for language, code in blocks(page):
        if language == "bash":
            shell(code, folder, things)
        else:
            exec(compile(code, f"{page.name}", "exec"), names)


def test_every_reason_not_to_run_a_line_is_needed():
    lines = [line for page in PAGES for line in page.read_text(encoding="utf-8").replace("\\\n", " ").split("\n")]
    assert [each for each in NOT_RUN if not any(re.match(each, line) for line in lines)] == []


@pytest.mark.slow
def test_the_old_pipeline_of_other_models_is_gone(things):
    code = f"from transformers import pipeline; pipeline('translation_en_to_de', model={MARIAN!r})"
    result = subprocess.run([sys.executable, "-c", code], cwd=things, capture_output=True, text=True)
    assert re.search("KeyError: .*translation_en_to_de", result.stderr)
