"""Any folder of this architecture is shared, and any model in memory: in one commit, with a card that is its own."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import read_metrics
from huggingface_hub import ModelCard
from loopback_push import client_push_from_memory, client_push_twice
from test_convert_command import invoke, opus_folder  # noqa: F401

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.hub import check, probe
from modeling_scratch.hub.allowed_files import chosen_files
from modeling_scratch.hub.card import build_card, check_card, required_metadata
from modeling_scratch.hub.check import check_folder
from modeling_scratch.training.records import run_of

NO_FACTS = re.compile(r"None|nan|More Information Needed|\{\{")


def checked(folder: Path, tmp_path: Path) -> list[str]:
    copy = tmp_path / "copy"
    copy.mkdir()
    return check_folder(folder, copy, run_of(folder))


def card_of(folder: Path, **options) -> ModelCard:
    run = run_of(folder)
    card = build_card(folder, "ada/tiny", run, **options)
    check_card(str(card), required_metadata(run))
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    with pytest.raises(ValueError, match=r"--languages: 'english' is not an ISO 639 code"):
        card_of(plain, languages=("english", "de"))


def test_a_check_draws_no_random_numbers(plain, tmp_path, monkeypatch):
    """Training goes on after a push of the best model, as if there had been none."""
    seen = []

    def observe(*arguments):
        seen.append(probe.observe(*arguments))
        return seen[0]

    monkeypatch.setattr(check, "probe", SimpleNamespace(observe=observe))
    monkeypatch.setattr(check, "observe_as_a_stranger", lambda *_: seen[0])  # whose process has numbers of its own
    before = torch.get_rng_state()
    checked(plain, tmp_path)
    assert len(seen) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_a_folder_is_pushed_in_one_commit(converted, plain, hub, client, tmp_path):
    """What the first push was told, the next ones remember."""
    folders = {"ada/opus": Path(shutil.copytree(converted, tmp_path / "opus")), "ada/plain": plain}
    assert client(client_push_twice, folders={name: str(folder) for name, folder in folders.items()}) == []
    for name, folder in folders.items():
        assert [commit["title"] for commit in hub.commits(name)].count("Upload model") == 1
        files = hub.files(name)
        assert set(files) - {".gitattributes"} == {*chosen_files(folder), "README.md"}
        card = files["README.md"].decode()
        check_card(card, required=(*required_metadata(None), "license", "language"))
        assert "Author: Ada. Shared by [ada]" in card


def test_a_run_with_several_test_sets(trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (final,) = [record for record in read_metrics(run) if record.get("final")]
    assert final["sentences"] == 500
    others = [{"name": "newstest2014", "bleu": 27.31, "sentences": 3003}, {"name": "a|b", "bleu": 11.119}]
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(final | {"sentences": 7, "bleu_interval": 1.25} | other) + "\n" for other in others)
    card = card_of(run)
    assert re.search(r"^\| newstest2014 \| 27\.31 ± 1\.25 \| .* \| 3,003 \|$", card.text, re.MULTILINE)
    assert re.search(r"^\| a&#124;b \| 11\.12 ± 1\.25 \| .* \| 7 \|$", card.text, re.MULTILINE)
    bleu = [result for result in card.data.eval_results if result.metric_name == "BLEU"]
    assert [(result.dataset_name, result.metric_value) for result in bleu][1:] == [
        ("newstest2014", 27.31),
        ("a|b", 11.12),
    ]


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED = {
    "config.json": [
        ('{"model_type": "marian"}', r"config.json: model_type is 'marian'.*convert marian .* OUT makes one"),
        ('{"model_type": "scratch", "d_model": []}', "config.json: d_model: must be an integer"),
        ('{"model_type": "scratch", "custom_pipelines": {"translation": 1}}', "config.json: auto_map and custom_pipe"),
        ('{"a":' * 100_000, "config.json: cannot be read as JSON: it is nested too deeply"),
    ],
    "generation_config.json": [
        ("[1]", "generation_config.json: expected an object, found list"),
    ],
    "tokenizer.json": [
        ("{", "tokenizer.json: cannot be read as JSON"),
        ('{"model": 1}', "run cannot be loaded here: "),
    ],
    "metrics.jsonl": [("[" * 100_000 + "\n", "metrics.jsonl: no records yet")],
    "conversion.json": [
        ('{"kind": 1}', "conversion.json: not what a conversion writes"),
        ('{"kind": "a", "name": "b", "largest_difference": null}', "conversion.json: not what a conversion writes"),
        ('{"kind": "a", "name": "b", "largest_difference": NaN}', "not what a conversion writes .*is not finite"),
    ],
}
CASES = [(name, content, message) for name, cases in REFUSED.items() for content, message in cases]


@pytest.mark.parametrize(("name", "content", "message"), CASES)
def test_json_of_another_shape_is_named(name, content, message, trained, tmp_path, monkeypatch):
    """Before any of the folder's code is run."""
    run = Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    if name == "conversion.json":
        (run / "recipe.yaml").unlink()
    (run / name).write_text(content)
    monkeypatch.delattr("modeling_scratch.hub.check.observe_as_a_stranger")
    look = checked if name.endswith(("config.json", "tokenizer.json")) else lambda *_: card_of(run)
    with pytest.raises(ValueError, match=message) as error:
        look(run, tmp_path)
    assert str(tmp_path / "copy") not in str(error.value)


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


# -- in memory ---------------------------------------------------------------------------------------------------------


def test_a_model_in_memory_is_pushed_in_one_commit_with_its_code(converted, hub, client):
    """By Transformers' own `push_to_hub`, which keeps a card that is there."""
    oid = client(client_push_from_memory, name="ada/first", converted=str(converted))
    history = hub.commits("ada/first")
    assert [commit["title"] for commit in history[:3]] == [
        "Upload ScratchForConditionalGeneration",
        "Upload README.md with huggingface_hub",
        "First",
    ]
    assert history[2]["id"] == oid
    assert ModelCard(hub.files("ada/first")["README.md"].decode()).text.strip() == "# Edited by hand"
    assert {"modeling_scratch.py", "translation_pipeline.py", "model.safetensors"} <= set(hub.files("ada/first"))
    assert len(hub.commits("ada/piped")) == 2  # the first makes the repository
    assert {"modeling_scratch.py", "model.safetensors", "source.spm"} <= set(hub.files("ada/piped"))
