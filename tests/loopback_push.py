"""Pushes of a small run's folder, without the check of what is in it: for processes that talk to a loopback Hub."""

import contextlib
import io
import sys
import time
from pathlib import Path

from conftest import ROOT, SMALL_RUN, run_training
from safetensors.torch import load_file, save_file

from modeling_scratch.hub.files import copy_files
from modeling_scratch.runs.checkpoint_store import WEIGHTS


def change_weights(run: Path, value: float) -> bytes:
    weights = load_file(run / WEIGHTS)
    weights["lm_head.bias" if "lm_head.bias" in weights else "model.encoder.layer_norm.bias"].fill_(value)
    save_file(weights, run / WEIGHTS, {"format": "pt"})
    return (run / WEIGHTS).read_bytes()


def call(main, folder: str, repo_id: str, **options) -> list:
    """[exit code, all that is printed]"""
    output = io.StringIO()
    code = 0
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            main(Path(folder), repo_id, **({"message": "Upload model"} | options))
        except SystemExit as exit:
            code = exit.code
    return [code, output.getvalue()]


def client_upload(folder: str, repo_id: str, **options) -> list:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from modeling_scratch.commands import upload

    skip_the_check()
    return call(upload.main, folder, repo_id, **options)


def client_train(arguments: list[str], overwrite: bool = False) -> list:
    """[exit code, all that is printed] of train.py, whose pushes do without the check of what is in the folder."""
    skip_the_check()
    output, code = io.StringIO(), 0
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            run_training(*SMALL_RUN, *arguments, overwrite=overwrite)
        except SystemExit as end:
            code = end.code
    return [code, output.getvalue()]


def skip_the_check() -> None:
    """Pushes of this process copy what is in a folder and do not look at it."""
    from modeling_scratch.hub import push as pushing

    pushing.check_folder = lambda folder, copy: list(copy_files(folder, copy))


def without_waits() -> None:
    """Waits between attempts take no time, as long as this call of the client process lasts."""
    time.sleep = lambda seconds: None
