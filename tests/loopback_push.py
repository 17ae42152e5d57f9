"""Pushes of a small run's folder, without the check of what is in it: for processes that talk to a loopback Hub."""

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path

from conftest import SMALL_MODEL, quick_run
from loopback_client import MODEL
from safetensors.torch import load_file, save_file

from modeling_scratch.commands import upload
from modeling_scratch.hub.allowed_files import copy_files
from modeling_scratch.training.folder import WEIGHTS


def change_weights(run: Path, value: float) -> bytes:
    weights = load_file(run / WEIGHTS)
    weights["lm_head.bias" if "lm_head.bias" in weights else "model.encoder.layer_norm.bias"].fill_(value)
    save_file(weights, run / WEIGHTS, {"format": "pt"})
    return (run / WEIGHTS).read_bytes()


def call(main: Callable, folder: str, *arguments, **options) -> list:
    """[exit code, all that is printed]"""
    output, code = io.StringIO(), 0
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            main(Path(folder), *arguments, **options)
        except SystemExit as end:
            code = end.code
    return [code, output.getvalue()]


def client_upload(folder: str, repo_id: str, **options) -> list:
    skip_the_check()
    return call(upload.main, folder, repo_id, **options)


def client_download_space(repo_id: str, folder: str) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(repo_id, repo_type="space", local_dir=folder)


def client_train(output_dir: str, arguments: list[str], overwrite: bool = False) -> list:
    """[exit code, all that is printed] of train.py, whose pushes do without the check of what is in the folder."""
    skip_the_check()
    return call(quick_run, output_dir, *arguments, overwrite=overwrite)


def client_push_twice(folders: dict[str, str]) -> list[str]:
    """Push each folder, then again without the options that the first push was given. What the failures said."""
    said = []
    for name, folder in folders.items():
        for options in ({"license": "cc-by-4.0", "languages": ["en", "de"], "author": "Ada"}, {}):
            code, text = client_upload(folder, name, **options)
            said += [text] if code else []
    return said


def client_push_from_memory(name: str, converted: str) -> str:
    """Push models that are in memory to several repositories; the first commit to `name`."""
    from huggingface_hub import ModelCard
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration, ScratchTranslationPipeline

    model = ScratchForConditionalGeneration(ScratchConfig(**SMALL_MODEL))
    first = model.push_to_hub(name, commit_message="First")
    tokenizer = AutoTokenizer.from_pretrained(converted)
    translator = AutoModelForSeq2SeqLM.from_pretrained(converted)
    ScratchTranslationPipeline(model=translator, tokenizer=tokenizer).push_to_hub("ada/piped")
    card = ModelCard.load(name)
    card.text = "# Edited by hand\n"
    card.push_to_hub(name)
    ScratchForConditionalGeneration(model.config).push_to_hub(name)
    return first.oid


class Pushes:
    """Pushes of one folder, without the check of what is in it, by the client process."""

    def __init__(self, client, hub, run):
        self.client, self.hub, self.run = client, hub, run

    def __call__(self, repo_id: str = MODEL, code: int = 0, **options) -> str:
        found, said = self.client(client_upload, folder=str(self.run), repo_id=repo_id, **options)
        assert found == code, said
        return said

    def card(self, name: str = MODEL) -> str:
        return self.hub.files(name)["README.md"].decode()

    def edit(self, old: str, new: str) -> None:
        path = self.run / "README.md"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def skip_the_check() -> None:
    """Pushes of this process copy what is in a folder and do not look at it."""
    from modeling_scratch.hub import push as pushing

    pushing.check_folder = lambda folder, copy, run: list(copy_files(folder, copy))


def without_waits() -> None:
    """Waits between attempts take no time, as long as this call of the client process lasts."""
    time.sleep = lambda seconds: None
