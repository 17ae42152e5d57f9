"""A model is converted for CTranslate2 again only if it has changed, and only its last conversion is kept."""

import os
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

engine = pytest.importorskip("modeling_scratch.inference.ctranslate2_engine")


def convert(name: str, cache: str) -> Path:
    """The folder of a converted model, here without content."""

    def run(command, **options):
        Path(command[-1]).mkdir()
        return subprocess.CompletedProcess(command, 0, stderr="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        patch.setattr(engine.subprocess, "run", run)
        return engine.converted(name)


def test_a_folder_is_converted_again_if_a_file_of_its_model_changes(tmp_path):
    folders, cache = [tmp_path / "one", tmp_path / "other"], str(tmp_path / "cache")
    for folder in folders:
        (folder / "target_tokenizer").mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "README.md", "target_tokenizer/tokenizer.json"):
            (folder / name).touch()
    first, other = (convert(str(folder), cache) for folder in folders)
    (folders[0] / "README.md").write_text("changed")
    assert convert(str(folders[0]), cache) == first
    for name in ("model.safetensors", "target_tokenizer/tokenizer.json"):
        os.utime(folders[0] / name, (0, 0))
        made = convert(str(folders[0]), cache)
        assert made != first
        assert not first.exists()
        first = made
    assert other.exists()
    folders[1].rename(tmp_path / "moved")
    convert(str(tmp_path / "moved"), cache)
    assert (first.exists(), other.exists()) == (True, False)


def client_convert(cache: str) -> list[str]:
    made = convert("ada/model", cache)
    snapshot_download("ada/model")
    return [str(made), str(convert("ada/model", cache))]


def test_a_model_of_the_hub_is_converted_once_for_each_commit(hub, client, tmp_path):
    hub.create("ada/model")
    hub.commit("ada/model", {"config.json": b"{}", "vocab.json": b"{}"})
    first, again = client(client_convert, cache=str(tmp_path))
    assert first == again
    hub.commit("ada/model", {"vocab.json": b"[]"})
    assert client(client_convert, cache=str(tmp_path))[0] != first
    assert not Path(first).exists()
