"""Any folder of this architecture is shared, and any model in memory: in one commit, with a card that is its own."""

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_hub
import torch
from conftest import SMALL_MODEL, small_run
from huggingface_hub import ModelCard
from loopback_client import run_client, running_hub
from test_convert_command import invoke, opus_folder  # noqa: F401
from transformers import AutoTokenizer

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.hub import probe as folder_probe
from modeling_scratch.hub.card import build_card, check_card, required_metadata
from modeling_scratch.hub.check import check_folder, chosen_files
from modeling_scratch.model.plain_card import add_tokenizer, make_card
from modeling_scratch.model.push_to_hub import facts_in_memory
from modeling_scratch.runs.folder import MANIFEST, OPTIMIZER

NO_FACTS = re.compile(r"None|nan|More Information Needed|\{\{")


def checked(folder: Path, tmp_path: Path) -> list[str]:
    copy = tmp_path / "copy"
    copy.mkdir()
    return check_folder(folder, copy)


def card_of(folder: Path, **options) -> ModelCard:
    card = build_card(folder, "ada/tiny", **options)
    check_card(str(card), folder, required_metadata(folder))
    assert not NO_FACTS.search(str(card))
    return card


@pytest.fixture(scope="module")
def converted(opus_folder, tmp_path_factory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("converted") / "model"
    invoke("marian", opus_folder, folder)
    return folder


@pytest.fixture
def plain(make_model, tmp_path) -> Path:
    """A model as save_pretrained writes it, without a tokenizer, in several files."""
    make_model().save_pretrained(tmp_path / "plain", max_shard_size="100KB")
    return tmp_path / "plain"


# -- folders -----------------------------------------------------------------------------------------------------------


def test_a_converted_model(converted, tmp_path):
    assert "translations of 6 sentences" in checked(converted, tmp_path)[-1]
    card = card_of(converted)
    assert card.data.to_dict() == {
        "language": ["en", "de"],
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["translation", "scratch", "attention-is-all-you-need"],
    }
    assert "\n# tiny: English to German\n" in card.text
    assert "torch, transformers and sentencepiece" in card.text
    record = json.loads((converted / "conversion.json").read_text())
    assert f"at most {record['largest_difference']:.1e}, in float32" in card.text
    assert 0 < record["largest_difference"] < 1e-4
    # What was converted from the Hub says from where.
    copy = shutil.copytree(converted, tmp_path / "named")
    (copy / "conversion.json").write_text(json.dumps(record | {"name": "Helsinki-NLP/opus-mt-en-de"}))
    named = card_of(copy, license="cc-by-4.0", author="Ada *Lovelace*")
    assert named.data.base_model == "Helsinki-NLP/opus-mt-en-de"
    assert named.data.license == "cc-by-4.0"
    assert "[Helsinki-NLP/opus-mt-en-de](https://huggingface.co/Helsinki-NLP/opus-mt-en-de), by" in named.text
    assert "Author: Ada &#42;Lovelace&#42;." in named.text
    assert "Shared by [ada](https://huggingface.co/ada)." in named.text


def test_a_model_that_was_saved(plain, tmp_path):
    assert len(list(plain.glob("model-*-of-*.safetensors"))) > 1
    findings = checked(plain, tmp_path)
    assert "output of random ids" in findings[-1]
    card = card_of(plain)
    assert "language" not in card.data.to_dict()
    assert "license" not in card.data.to_dict()
    model = ScratchForConditionalGeneration.from_pretrained(plain)
    assert f"| Parameters | {sum(p.numel() for p in model.parameters()):,} (float32) |" in card.text
    assert "Not measured" in card.text
    assert "There is no tokenizer in this repository" in card.text
    (code,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    exec(code.replace("ada/tiny", str(plain)), {})
    known = card_of(plain, languages=("pt_BR", "de"))
    assert known.data.language == ["pt", "de"]
    assert known.data.language_bcp47 == ["pt-BR", "de"]
    assert "# tiny: Portuguese (pt-BR) to German" in known.text
    with pytest.raises(ValueError, match=r"--languages: 'english' is no ISO 639 code"):
        build_card(plain, "ada/tiny", languages=("english", "de"))


def client_twice(folders: dict[str, str]) -> list[str]:
    """Push each, then once more: what was told is remembered."""
    said = []
    for name, folder in folders.items():
        for options in ({"license": "cc-by-4.0", "languages": ["en", "de"], "author": "Ada"}, {}, {}):
            code, text = test_hub.client_upload(folder, name, **options)
            said += [text] if code else []
    return said


def test_a_folder_is_pushed_in_one_commit(converted, plain, tmp_path):
    folders = {"ada/opus": Path(shutil.copytree(converted, tmp_path / "opus")), "ada/plain": plain}
    with running_hub(tmp_path) as hub:
        given = {name: str(folder) for name, folder in folders.items()}
        assert run_client(hub, client_twice, folders=given) == []
        for name, folder in folders.items():
            assert [commit["title"] for commit in hub.commits(name)].count("Upload model") == 1
            files = hub.files(name)
            assert set(files) - {".gitattributes"} == {*chosen_files(folder), "README.md"}
            card = files["README.md"].decode()
            check_card(card, required=(*required_metadata(folder), "license", "language"))
            assert "Author: Ada. Shared by [ada]" in card


def test_a_run_with_several_test_sets(trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (final,) = [record for record in map(json.loads, (run / "metrics.jsonl").open()) if record.get("final")]
    assert final["sentences"] == 500
    others = [{"name": "newstest2014", "bleu": 27.31, "sentences": 3003}, {"name": "a|b", "bleu": 11.119}]
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(final | {"sentences": 7} | other) + "\n" for other in others)
    card = card_of(run)
    assert f"| newstest2014 | 27.31 | {final['chrf']:.2f} | 3,003 |" in card.text
    assert f"| a&#124;b | 11.12 | {final['chrf']:.2f} | 7 |" in card.text
    names = [(result.dataset_name, result.metric_value) for result in card.data.eval_results[::2]]
    assert names[1:] == [("newstest2014", 27.31), ("a|b", 11.12)]


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED = {
    "config.json": [
        ('{"model_type": "marian"}', r"config.json: model_type is 'marian'.*convert marian .* OUT makes one"),
        ('{"model_type": "scratch", "d_model": []}', "config.json: d_model is "),
        ('{"model_type": "scratch", "auto_map": []}', "config.json: "),
        ('{"model_type": "scratch", "auto_map": {"AutoConfig": 1}}', "config.json: "),
        ('{"model_type": "scratch", "custom_pipelines": {"translation": 1}}', "config.json: auto_map and custom_pipe"),
        ('{"a":' * 100_000, "config.json: nested too deeply"),
    ],
    "generation_config.json": [
        ("[1]", "generation_config.json: expected an object, found list"),
        ('{"num_beams": {}}', "generation_config.json: "),
    ],
    "tokenizer.json": [
        ("{}", "tokenizer.json: not a tokenizer: "),
        ('{"model": 1}', "tokenizer.json: not a tokenizer"),
    ],
    "tokenizer_config.json": [('{"tokenizer_class": 3}', "tokenizer_config.json: no tokenizer loads by it: ")],
    "metrics.jsonl": [
        ('{"split": "test", "step": 1, "final": true, "bleu": "high"}\n', "metrics.jsonl, line 1: not a record that"),
        ('{"split": [], "step": 1}\n', "metrics.jsonl, line 1: not a record that"),
        ("[" * 100_000 + "\n", "metrics.jsonl, line 1: not JSON"),
    ],
    "conversion.json": [('{"kind": 1}', "conversion.json: not what a conversion writes")],
}
CASES = [(name, content, message) for name, cases in REFUSED.items() for content, message in cases]


@pytest.mark.parametrize(("name", "content", "message"), CASES)
def test_valid_json_of_another_shape_is_named(name, content, message, trained, tmp_path, monkeypatch):
    """Before anything of the folder is run."""
    run = Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    if name == "conversion.json":
        (run / "recipe.yaml").unlink()
    (run / name).write_text(content)
    monkeypatch.delattr("modeling_scratch.hub.probe.observe")
    look = checked if name.endswith(("config.json", "tokenizer.json")) else lambda *_: build_card(run, "ada/tiny")
    with pytest.raises(ValueError, match=message) as error:
        look(run, tmp_path)
    assert str(tmp_path / "copy") not in str(error.value)


def test_an_index_of_other_files(plain, tmp_path):
    for content in ('{"weight_map": []}', '{"weight_map": {"a": "b.safetensors"}}'):
        (plain / "model.safetensors.index.json").write_text(content)
        with pytest.raises(ValueError, match=r"index\.json: weight_map does not name"):
            chosen_files(plain)


@pytest.mark.parametrize("name", ["config.json", "layers.py", "README.md", "model-00001-of-00003.safetensors"])
def test_links_out_of_the_folder_are_refused(name, plain, tmp_path):
    path, secret = plain / name, tmp_path / "secret"
    secret.write_text("{}")
    path.unlink(missing_ok=True)
    path.symlink_to(secret)
    with pytest.raises(ValueError, match=rf"{name} is a symbolic link out of the folder, to {secret}|model_type"):
        chosen_files(plain)


def test_links_that_are_fine(plain, tmp_path):
    (plain / "layers.py").rename(plain / "elsewhere.txt")
    (plain / "layers.py").symlink_to("elsewhere.txt")
    (plain / "checkpoints").symlink_to(tmp_path)
    assert "layers.py" in chosen_files(plain)


def test_a_folder_of_links(plain, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (plain / "target_tokenizer").symlink_to(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match="target_tokenizer is a symbolic link out of the folder"):
        chosen_files(plain)


def test_code_that_is_not_the_installed_one_is_named_before_it_runs(plain, tmp_path, caplog, monkeypatch):
    (plain / "layers.py").write_text((plain / "layers.py").read_text() + "\n# mine\n")
    said = []
    monkeypatch.setattr(
        "modeling_scratch.hub.check.observe_as_a_stranger", lambda *arguments: said.append(caplog.text) or 1 / 0
    )
    with caplog.at_level("INFO", "modeling_scratch"), pytest.raises(ZeroDivisionError):
        checked(plain, tmp_path)
    assert "running the folder's own 18 .py files" in said[0]
    assert "layers.py: not as installed with modeling_scratch" in said[0]
    assert "stacks.py" not in said[0]


@pytest.mark.parametrize("name", [OPTIMIZER, "training_state.json"])
def test_a_checkpoint_of_another_shape(name, tmp_path, capsys):
    """One whose manifest was written anew."""
    run = small_run(tmp_path / "run", "optimization.max_steps=2")
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    contents = [b"no pickle", pickled({"state": 1}), pickled([])] if name == OPTIMIZER else [b'{"steps": 1}']
    for content in contents:
        (checkpoint / name).write_bytes(content)
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        manifest[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (checkpoint / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(SystemExit):
            small_run(run, "optimization.max_steps=3", resume=True)
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert re.match(rf"error: .*{name}: not what a checkpoint of this run holds \(.*--resume-from", line), line


def pickled(content) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


# -- in memory ---------------------------------------------------------------------------------------------------------


def client_push(name: str, converted: str) -> str:
    import sys

    sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent.parent)]
    from huggingface_hub import ModelCard
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from modeling_scratch import ScratchForConditionalGeneration, ScratchTranslationPipeline

    model = ScratchForConditionalGeneration(ScratchConfig(**SMALL_MODEL))
    first = model.push_to_hub(name, commit_message="First", tags="mine")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(name)
    loaded.push_to_hub("ada/second", revision="experiment")
    loaded.save_pretrained("third", push_to_hub=True, repo_id="ada/third", private=True)
    tokenizer = AutoTokenizer.from_pretrained(converted)
    translator = AutoModelForSeq2SeqLM.from_pretrained(converted)
    ScratchTranslationPipeline(model=translator, tokenizer=tokenizer).push_to_hub("ada/piped")
    card = ModelCard.load(name)
    card.text = "# Edited by hand\n"
    card.push_to_hub(name)
    model.push_to_hub(name, tags=["other"])
    model.push_to_hub("ada/fourth")
    return first.oid


def test_a_model_in_memory_is_pushed_in_one_commit_with_a_card(converted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with running_hub(tmp_path) as hub:
        mine = b"---\r\nlicense:   mit\r\n---\r\n# Mine\r\n"
        hub.create("ada/fourth")
        hub.commit("ada/fourth", {"README.md": mine}, "By hand")
        hub.create("ada/second")
        hub.commit("ada/second", {"README.md": b"---\nlicense: mit\n---\n"}, "As the Hub's form writes it")
        oid = run_client(hub, client_push, name="ada/first", converted=str(converted))
        history = hub.commits("ada/first")
        assert [commit["title"] for commit in history[:3]] == [
            "Upload model",
            "Upload README.md with huggingface_hub",
            "First",
        ]
        assert history[2]["id"] == oid
        edited = ModelCard(hub.files("ada/first")["README.md"].decode())
        assert edited.text.strip() == "# Edited by hand"
        assert {"mine", "other", "scratch"} <= set(edited.data.tags)
        second = ModelCard(hub.files("ada/second", "experiment")["README.md"].decode())
        assert second.data.base_model == "ada/first"
        assert second.data.license == "mit"
        check_card(str(second), required=("library_name", "pipeline_tag", "tags"))
        assert "config.json" not in hub.files("ada/second")
        piped = ModelCard(hub.files("ada/piped")["README.md"].decode())
        assert piped.data.language == ["en", "de"]
        assert "# piped: en to de" in piped.text
        assert "torch, transformers and sentencepiece" in piped.text
        assert piped.data.base_model is None  # a folder's name stays here
        assert {"README.md", "push_to_hub.py", "model.safetensors"} <= set(hub.files("ada/third"))
        assert hub.files("ada/fourth")["README.md"] == mine
        assert hub.repository("ada/third").settings["private"]
        assert not NO_FACTS.search(hub.files("ada/third")["README.md"].decode())


def test_a_run_s_tokenizer_knows_its_languages(trained):
    """So that whoever pushes the model from memory, without the run's records, has them in the card."""
    model = ScratchForConditionalGeneration.from_pretrained(trained)
    facts = facts_in_memory(model)
    add_tokenizer(facts, AutoTokenizer.from_pretrained(trained), 1)
    card = make_card(facts, "ada/model")
    assert card.data.language == ["en", "de"]
    assert "This model translates en to de." in card.text


@pytest.mark.parametrize("act", ["socket", "name", "message", "process", "shell"])
def test_the_check_refuses_connections_and_processes(act):
    code = {
        "socket": "socket.create_connection(('127.0.0.1', 9))",
        "name": "socket.gethostbyname('localhost')",
        "message": "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', 9))",
        "process": "subprocess.run(['true'])",
        "shell": "os.system('true')",
    }[act]
    hook = "import os, runpy, socket, subprocess, sys\n"
    hook += f"probe = runpy.run_path({folder_probe.__file__!r})\nsys.addaudithook(probe['_no_connections'])\n"
    result = subprocess.run([sys.executable, "-c", hook + code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "PermissionError: the folder's code wants a connection, or another process" in result.stderr
