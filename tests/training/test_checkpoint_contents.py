"""Checkpoints whose manifest is right and whose contents are not."""

import hashlib
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import quick_run

from modeling_scratch.training.folder import MANIFEST, OPTIMIZER


def pickled(content) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


CONTENTS = [
    (OPTIMIZER, b"no pickle"),
    (OPTIMIZER, pickled({"state": 1})),
    (OPTIMIZER, pickled([])),
    ("training_state.json", b'{"steps": 1}'),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    return quick_run(tmp_path_factory.mktemp("stopped") / "run", "optimization.max_steps=2")


@pytest.mark.parametrize(("name", "content"), CONTENTS)
def test_a_checkpoint_of_another_shape(name, content, stopped, tmp_path, capsys):
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    (checkpoint / name).write_bytes(content)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(SystemExit):
        quick_run(run, "optimization.max_steps=3", resume=True)
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.match(rf"error: .*{name}: not what a checkpoint of this run holds \(.*--resume-from", line), line
