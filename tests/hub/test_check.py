"""The check before a push: which files are chosen, and which damage to a folder is found."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from foreign_models import scratch
from loopback_client import change_weights
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from modeling_scratch.apps.convert import to_marian
from modeling_scratch.commands import upload
from modeling_scratch.hub import check, probe
from modeling_scratch.hub.allowed_files import chosen_files
from modeling_scratch.hub.check import PROBES, check_conversion, check_model, check_translations, compare_results
from modeling_scratch.run.folder import WEIGHTS
from modeling_scratch.run.records import run_of


def test_only_files_on_the_allow_list_are_chosen(run):
    (run / "optimizer.pt").write_bytes(b"pickle")
    checkpoint = run / "checkpoints" / "step-0000010"
    checkpoint.mkdir(parents=True)
    for name in ("config.json", WEIGHTS):
        shutil.copy(run / name, checkpoint)
    (run / ".env").write_text("HF_TOKEN=hf_secret")
    (run / "notes.py").write_text("import requests")
    (run / "LICENSE-DATA").write_text("CC BY 4.0")
    chosen = set(chosen_files(run))
    assert {
        "config.json",
        "LICENSE-DATA",
        "generation_config.json",
        WEIGHTS,
        "tokenizer.json",
        "curves.png",
        "stacks.py",
    } <= chosen
    assert not chosen & {"optimizer.pt", ".env", "notes.py", "metrics.jsonl", "recipe.yaml"}
    assert not any(name.startswith("checkpoints/") for name in chosen)


def test_the_check_announces_that_it_runs_code_and_cleans_up_after_a_signal(run, tmp_path, monkeypatch, capsys):

    def stopped(copy, sentences):
        assert "running the folder's Python files" in capsys.readouterr().err
        assert list(temporary.iterdir()) == [copy]
        signal.raise_signal(signal.SIGHUP)

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(check, "observe_as_a_stranger", stopped)
    with pytest.raises(SystemExit) as ended:
        upload.main(run, check_only=True)
    assert ended.value.code == 128 + signal.SIGHUP
    assert list(temporary.iterdir()) == []


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Replaces the first occurrence of a text in a file of the folder."""

    def edited(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return edited


def remove_weight(run: Path) -> None:
    weights = load_file(run / WEIGHTS)
    weights.pop("model.encoder.layers.0.self_attn.q_proj.weight")
    save_file(weights, run / WEIGHTS, {"format": "pt"})


def zero_the_end(run: Path) -> None:
    """As a copy that was cut off and filled up: finite, and of the right shapes."""
    weights, left = load_file(run / WEIGHTS), (run / WEIGHTS).stat().st_size // 10  # 40 % of four bytes each
    for tensor in reversed(weights.values()):
        tensor.view(-1)[max(0, tensor.numel() - left) :] = 0
        left = max(0, left - tensor.numel())
    save_file(weights, run / WEIGHTS, {"format": "pt"})


def exchange_tokenizer(run: Path) -> None:
    """For another of the same size and special tokens: all other tokens have other ids."""
    content = json.loads((run / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    special = {token["content"] for token in content["added_tokens"]}
    others = [token for token in vocabulary if token not in special]
    moved = zip(others, [vocabulary[token] for token in others[1:] + others[:1]], strict=True)
    content["model"]["vocab"] = vocabulary | dict(moved)
    (run / "tokenizer.json").write_text(json.dumps(content))


def add_handler(run: Path) -> None:
    """A handler.py that its owner has edited may give other answers, but this one gives none."""
    text = Path(probe.__file__).with_name("handler.py").read_text()
    (run / "handler.py").write_text(text.replace('self.pipeline(data["inputs"],', 'self.pipeline(data["input"],'))


CONNECT = "import torch\nimport socket\nsocket.create_connection(('127.0.0.1', 9))\n"
DAMAGE = {
    "NaN": (lambda run: change_weights(run, float("nan")), "NaN"),
    "truncated": (lambda run: (run / WEIGHTS).write_bytes((run / WEIGHTS).read_bytes()[:-100]), "truncated"),
    "weights missing": (remove_weight, r"missing.*model.encoder.layers.0.self_attn.q_proj"),
    "weights zero": (zero_the_end, "not the model that the run has scored"),
    "tokenizer": (exchange_tokenizer, "not the model that the run has scored"),
    "settings": (edit("generation_config.json", '"max_new_tokens": 8', '"max_new_tokens": 1'), "but gave .* then"),
    "byte order mark": (edit("generation_config.json", "{", "\ufeff{"), "generation_config.json.*BOM"),
    "file missing": (lambda run: (run / "text.py").unlink(), "text.py"),
    "token": (edit("config.json", "{", f'{{"note": "hf_{"a" * 30}",'), "config.json.*token"),
}
# Found only in a fresh process, as on a stranger's machine. A default test that starts one is in test_push.py.
DAMAGE_FOR_STRANGERS = {
    "import": (edit("masking.py", "import torch\n", "import torch\nimport no_such_package\n"), "'no_such_package'"),
    "other code": (edit("position_embeddings.py", "10000.0", "20000.0"), r"logits \(by "),
    "pipeline": (edit("translation_pipeline.py", "{self._key: text}", '{self._key: "x"}'), "pipeline: "),
    "handler": (add_handler, "KeyError: 'input'"),
    "connection": (edit("attention.py", "import torch\n", CONNECT), "connection"),
}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *(pytest.param(*case, id=name) for name, case in DAMAGE.items()),
        *(pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in DAMAGE_FOR_STRANGERS.items()),
    ],
)
def test_damage_to_a_folder_is_found(damage, message, run, tmp_path):
    damage(run)
    copy = tmp_path / "copy"
    copy.mkdir()
    with pytest.raises(ValueError, match=message) as error:
        check_model(run, copy, run_of(run))
    assert str(copy) not in str(error.value)


def test_translations_that_differ_as_rounding_would_have_it_are_told(run):
    """Where the run has none, too."""
    samples = run_of(run).samples
    assert len(samples) == 5
    assert "5 from the run, 5 are the same" in check_translations(run, samples)
    samples[0]["translation"] += "."
    assert "5 from the run, 4 are the same" in check_translations(run, samples)
    assert "NOT compared" in check_translations(run, [])


def test_a_conversion_that_gives_something_else_is_found(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(check, "observe_as_a_stranger", lambda folder, texts: probe.observe(str(folder), texts, False))
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = scratch(vocab_size=len(tokenizer))
    model.generation_config.update(max_new_tokens=10, no_repeat_ngram_size=1)
    for folder, saved in ((tmp_path / "original", model), (tmp_path / "converted", to_marian(model))):
        saved.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    (finding,) = check_conversion(tmp_path / "original", tmp_path / "converted", None, 1e-4)
    assert f"{len(PROBES)} inputs" in finding
    edit("generation_config.json", '"max_new_tokens": 10', '"max_new_tokens": 3')(tmp_path / "converted")
    with pytest.raises(ValueError, match="other outputs than"):
        check_conversion(tmp_path / "original", tmp_path / "converted", None, 1e-4)


def test_a_model_that_samples_gives_the_same_results_twice(run):
    config = json.loads((run / "generation_config.json").read_text())
    (run / "generation_config.json").write_text(json.dumps(config | {"do_sample": True, "num_beams": 1}))
    first, second = (probe.observe(str(run), ["The cat sleeps.", "We run."], True) for _ in range(2))
    compare_results(first, second)


def test_differences_between_author_and_stranger_are_named():
    author = {"input_ids": [[1]], "decoded": ["a"], "outputs": ["b"], "pipeline": ["b"], "handler": ["b"]}
    author |= {"logits": torch.zeros(3)}
    compare_results(author, author | {"logits": author["logits"] + 1e-7})
    with pytest.raises(ValueError, match=r"pipeline, logits \(by 1\.0e-05\)"):
        compare_results(author, author | {"pipeline": ["c"], "handler": ["c"], "logits": author["logits"] + 1e-5})


@pytest.mark.parametrize("name", ["config.json", "layers.py", "README.md"])
def test_symbolic_links_are_refused(name, run, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret)
    with pytest.raises(ValueError, match=rf"{name}.* symbolic link|model_type"):
        chosen_files(run)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{"model_type": "marian"}', "convert marian"),
        ("config.json", '{"model_type": "scratch", "d_model": []}', "d_model"),
        ("config.json", '{"model_type": "scratch", "custom_pipelines": {"translation": 1}}', "custom_pipelines"),
        ("generation_config.json", "[1]", "object"),
        ("tokenizer.json", "{", "JSON"),
    ],
)
def test_json_of_the_wrong_shape_is_reported_before_any_code_runs(name, content, message, run, tmp_path, monkeypatch):
    (run / name).write_text(content)
    monkeypatch.delattr(check, "observe_as_a_stranger")
    (tmp_path / "copy").mkdir()
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        check_model(run, tmp_path / "copy", run_of(run))


def test_a_check_leaves_the_random_state_unchanged(run, tmp_path, monkeypatch):
    """A push during training must not change the updates after it."""
    observed = {"loading": [], "logits": torch.zeros(1)}
    monkeypatch.setattr(check, "observe_as_a_stranger", lambda *_: observed)
    monkeypatch.setattr(check, "compare_results", lambda *_: None)
    before = torch.get_rng_state()
    (tmp_path / "copy").mkdir()
    check_model(run, tmp_path / "copy", None)
    assert torch.equal(torch.get_rng_state(), before)


ACTS = {
    "connect": "socket.create_connection(('127.0.0.1', 9))",
    "look a name up": "socket.gethostbyname('localhost')",
    "send a message": "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', 9))",
    "start a process": "subprocess.run(['true'])",
    "start a shell": "os.system('true')",
}


def test_the_check_refuses_connections_and_processes():
    code = f"""
import json, os, runpy, socket, subprocess, sys
from unittest.mock import MagicMock
sys.modules |= {{"torch": MagicMock(), "transformers": MagicMock()}}  # whose import takes seconds
loaded = runpy.run_path({probe.__file__!r})
sys.addaudithook(loaded["_no_connections"])
refused = {{}}
for name, act in {ACTS!r}.items():
    try:
        exec(act)
    except PermissionError as error:
        refused[name] = str(error)
print(json.dumps(refused))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    refused = json.loads(result.stdout)
    assert refused.keys() == ACTS.keys()
    assert all("connection" in message for message in refused.values())
