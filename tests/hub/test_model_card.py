"""The model card: it says what the run's records say, what was edited by hand stays, the check finds what is wrong."""

import importlib.metadata
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from conftest import SMALL_MODEL, read_metrics, small_run
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM

from modeling_scratch import ScratchConfig
from modeling_scratch.hub.card import build_card, check_card, merge_card
from modeling_scratch.training.metrics import METRICS, describe_score

BLEU, CHRF = "nrefs:1|case:mixed|tok:13a|version:2.6.0", "nrefs:1|case:mixed|nc:6|version:2.6.0"
SCORES = {"bleu": 31.25, "chrf": 57.123456789}
SIGNATURES = {"bleu_signature": BLEU, "chrf_signature": CHRF}
TRAIN = {"step": 20, "epoch": 1.5, "split": "train", "loss": 2.0, "target_tokens": 12345, "seconds": 75.4}
VALIDATION = {"step": 20, "epoch": 1.5, "split": "validation", "loss": 1.5, "bleu": 30.0, "chrf": 55.0}
FINAL = {"step": 20, "epoch": 1.5, "split": "test", "final": True, "num_beams": 4, **SCORES, **SIGNATURES}
MACHINE = {
    "device": "cpu",
    "device_name": "Some | Processor",
    "processes": 2,
    "mixed_precision": "no",
    "parameters": 20,
    "train_pairs": 29000,
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "modeling_scratch": "0.1.0",
}
SAMPLES = """# Translations of the first sentences of the test split

- source: A cat sleeps.
  reference: Eine Katze schläft.
  translation: Eine Katze schläft.
- source: A | B <script>alert(1)</script> **bold** [link](nowhere.md) {{ name }} `code` \\ _x_ &amp; $y$
  reference: two
lines
  translation: a key hf_abcdefghijklmnopqrstuvwxyz012345
"""


def make_run(folder: Path, recipe: dict | None = None, records: list[dict] | None = None, **config) -> Path:
    """A run's folder as far as a card is made from it."""
    folder.mkdir(parents=True)
    content = {"output_dir": "runs/made", "optimization": {"max_epochs": 1}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content | (recipe or {})))
    ScratchConfig(**(SMALL_MODEL | config)).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"num_beams": 4, "length_penalty": 0.6, "max_new_tokens": 64}')
    records = [TRAIN, VALIDATION, FINAL] if records is None else records
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "samples.md").write_text(SAMPLES)
    (folder / "curves.png").write_bytes(b"PNG")
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(8)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(tmp_path / "runs" / "made")


def card_of(folder: Path, **options) -> str:
    """A card that passes the check."""
    text = str(build_card(folder, "ada/tiny", **options))
    check_card(text, folder)
    return text


def section(text: str, title: str) -> str:
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1].strip()


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


# -- building ----------------------------------------------------------------------------------------------------------


def test_metadata_of_a_made_run(run):
    data = yaml.safe_load(card_of(run).split("---\n")[1])
    assert data == {
        "language": ["en", "de"],
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "metrics": ["sacrebleu", "chrf"],
        "tags": ["translation", "scratch", "attention-is-all-you-need"],
        "widget": [{"text": "A cat sleeps.", "output": {"text": "Eine Katze schläft."}}],
        "model-index": [
            {
                "name": "tiny",
                "results": [
                    {
                        "task": {"type": "translation", "name": "Translation en-de"},
                        "dataset": {
                            "name": "the embedded corpus of modeling_scratch",
                            "type": "embedded",
                            "split": "test",
                        },
                        "metrics": [
                            {"type": "sacrebleu", "value": 31.25, "name": "BLEU", "args": {"signature": BLEU}},
                            {"type": "chrf", "value": 57.12, "name": "chrF", "args": {"signature": CHRF}},
                        ],
                    }
                ],
            }
        ],
    }


def test_a_real_run(trained):
    text = card_of(trained)
    card = ModelCard(text)
    assert str(card) == text
    final = [record for record in read_metrics(trained) if record.get("final")]
    found = {(r.dataset_split, r.metric_type): (r.metric_value, r.metric_args) for r in card.data.eval_results}
    for record in final:
        for key, metric in METRICS.items():
            value, arguments = float(f"{record[key]:.2f}"), {"signature": record[f"{key}_signature"]}
            assert found.pop((record["split"], metric.hub_id)) == (value, arguments)
        shown = " | ".join(describe_score(record, key) for key in METRICS)
        assert f"| {record['split']} | {shown} | {record['sentences']} |" in section(text, "Results")
        assert f"`{record['bleu_signature']}`" in text
    assert not found
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    assert f"| Parameters | {sum(p.numel() for p in model.parameters()):,} (float32) |" in text
    for package in ("torch", "datasets", "tokenizers", "sacrebleu"):
        assert f"{package} {importlib.metadata.version(package)}" in section(text, "Training")
    last = read_metrics(trained, "train")[-1]
    assert f"| Target tokens | {last['target_tokens']:,} over all epochs |" in text
    assert f"| Updates | {last['step']:,} |" in text
    assert str(trained.parent) not in text


def test_sentences_that_look_like_placeholders_are_no_examples(run):
    """The second of the samples holds {{ name }}, which would be one in the metadata."""
    widget = ModelCard(card_of(run)).data.to_dict()["widget"]
    assert [example["text"] for example in widget] == ["A cat sleeps."]


def test_the_recipe_is_there_whole(trained):
    text = card_of(trained)
    shown = yaml.safe_load(re.search(r"```yaml\n(.*?)\n```\n\n</details>", text, re.DOTALL)[1])
    recipe = yaml.safe_load((trained / "recipe.yaml").read_text())
    recipe.pop("hub", None)
    assert shown == recipe | {"output_dir": trained.name}


@pytest.mark.parametrize("two", [False, True], ids=["one vocabulary", "two vocabularies"])
def test_the_code_in_it_runs(trained, tmp_path, two, capsys):
    folder = trained
    if two:
        folder = small_run(tmp_path / "run", "tokenizer.shared=false", "optimization.max_steps=2")
    text = card_of(folder)
    assert ("target_tokenizer" in text) == two
    blocks = python_blocks(text)
    pipeline = [block for block in blocks if "import pipeline" in block]
    assert len(pipeline) == ("custom_pipelines" in json.loads((folder / "config.json").read_text()))
    names: dict = {}
    for block in pipeline + [block for block in blocks if block not in pipeline]:
        exec(block.replace("ada/tiny", str(folder)), names)
    assert capsys.readouterr().out
    for use in ("AutoTokenizer", "AutoModelForSeq2SeqLM", "padding=True", "generate"):
        assert use in text


def test_the_pipeline_is_shown_where_the_checkpoint_has_one(run):
    config = json.loads((run / "config.json").read_text())
    config.pop("custom_pipelines", None)
    (run / "config.json").write_text(json.dumps(config))
    assert "pipeline(" not in card_of(run)
    (run / "config.json").write_text(json.dumps(config | {"custom_pipelines": {"translation": {"impl": "a.B"}}}))
    assert 'pipeline("translation", model="ada/tiny", trust_remote_code=True)' in card_of(run)


def test_samples_are_shown_as_they_are(run):
    text = card_of(run)
    rows = section(text, "Sample translations").split("\n")[2:]
    assert rows[0] == "| English | Reference | Translation |"
    assert rows[2] == "| A cat sleeps. | Eine Katze schläft. | Eine Katze schläft. |"
    assert len(rows) == 4
    cells = rows[3].split(" | ")
    assert len(cells) == 3
    assert not set("<>`*[]{}$\\~_") & set(cells[0])
    assert cells[1] == "two<br>lines"
    shown = re.sub(r"&#(\d+);", lambda match: chr(int(match[1])), cells[0]).removeprefix("| ")
    assert shown == "A | B <script>alert(1)</script> **bold** [link](nowhere.md) {{ name }} `code` \\ _x_ &amp; $y$"
    assert "hf_abc" not in text


def test_without_samples_or_curves(run):
    (run / "samples.md").unlink()
    (run / "curves.png").unlink()
    text = card_of(run)
    assert "## Sample translations" not in text
    assert "## Curves" not in text
    for block in python_blocks(text):
        compile(block, "card", "exec")


def test_hardware_is_of_the_last_run_record(tmp_path):
    older = {"step": 0, "epoch": 0.0, "split": "run", **MACHINE, "device_name": "Old"}
    newer = {"step": 10, "epoch": 0.7, "split": "run", **MACHINE}
    text = card_of(make_run(tmp_path / "run", None, [older, newer, TRAIN, VALIDATION, FINAL]))
    training = section(text, "Training")
    assert "| Hardware | CPU: Some &#124; Processor, 2 processes |" in training
    assert "29,000 pairs" in training
    assert "| Precision | float32 |" in training
    assert "torch 2.13.0, transformers 5.23.0" in training
    assert "modeling_scratch 0.1.0." in text
    assert "1 min 15 s" in training
    assert "12,345" in training


def test_older_runs_have_no_run_record(run):
    training = section(card_of(run), "Training")
    assert "Hardware" not in training
    assert "None" not in training


PATHS = {
    "output_dir": "/home/me/secret/runs/made",
    "tokenizer": {"existing": "/home/me/secret/tokenizer"},
    "data": {
        "train_files": ["/home/me/secret/train.en", "C:\\Users\\me\\secret\\train.de"],
        "validation_files": "../secret/dev.jsonl",
        "test_files": "~/secret/test|1.tsv",
    },
}


def test_no_folder_of_the_machine_gets_in(tmp_path):
    text = card_of(make_run(tmp_path / "run", PATHS))
    for secret in ("secret", "/home", "Users", "~/", str(tmp_path)):
        assert secret not in text
    for name in ("train.en", "train.de", "dev.jsonl", "test|1.tsv", "output_dir: made", "existing: tokenizer"):
        assert name in text
    assert "local files (train.en, train.de)" in text
    data = ModelCard(text).data
    assert data.datasets is None
    assert {result.dataset_name for result in data.eval_results} == {"test|1.tsv"}


def test_no_token_gets_in(tmp_path):
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3h"
    recipe = {"data": {"train_files": f"/tmp/{token}.jsonl", "source_column": token}}
    record = {"step": 0, "epoch": 0.0, "split": "run", **MACHINE}
    assert token not in card_of(make_run(tmp_path / "run", recipe, [record, TRAIN, VALIDATION, FINAL]))


def test_a_data_set_on_the_hub(tmp_path):
    recipe = {"data": {"name": "wmt/wmt14", "subset": "de-en", "test": "test2014"}}
    final = {**FINAL, "split": "validation"}
    text = card_of(make_run(tmp_path / "run", recipe, [TRAIN, VALIDATION, final, FINAL]))
    data = ModelCard(text).data
    assert data.datasets == ["wmt/wmt14"]
    assert [(r.dataset_type, r.dataset_config, r.dataset_split) for r in data.eval_results[::2]] == [
        ("wmt/wmt14", "de-en", "validation"),
        ("wmt/wmt14", "de-en", "test2014"),
    ]
    assert "https://huggingface.co/datasets/wmt/wmt14" in section(text, "Limits and intended use")


def test_files_win_over_a_data_set(tmp_path):
    recipe = {"data": {"name": "wmt/wmt14", "train_files": "/data/train"}}
    text = card_of(make_run(tmp_path / "run", recipe))
    assert ModelCard(text).data.datasets is None
    assert "huggingface.co/datasets" not in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grace/en-de", "grace/en-de"),
        ("runs/first", None),
        ("/home/me/first", None),
        ("./first", None),
        ("first", None),
    ],
)
def test_base_model_is_one_of_the_hub(tmp_path, name, expected):
    folder = make_run(tmp_path / "runs" / "made", {"model": {"start_from": name}})
    text = card_of(folder)
    assert ModelCard(text).data.base_model == expected
    assert "fine-tuned from" in text
    assert "/home/me" not in text
    if expected:  # a folder of that name was there when the run started: Transformers takes that
        (tmp_path / name).mkdir(parents=True)
        assert ModelCard(card_of(folder)).data.base_model is None


@pytest.mark.parametrize(
    ("source", "target", "language", "bcp47", "title"),
    [
        ("de", "en", ["de", "en"], None, "German to English"),
        ("no", "sv", ["no", "sv"], None, "Norwegian to Swedish"),
        ("pt_BR", "zh-Hant", ["pt", "zh"], ["pt-BR", "zh-Hant"], "Portuguese (pt-BR) to Chinese (zh-Hant)"),
        ("EN", "deu", ["en", "deu"], None, "English to deu"),
    ],
)
def test_languages(tmp_path, source, target, language, bcp47, title):
    recipe = {"data": {"source_language": source, "target_language": target, "train_files": "train"}}
    text = card_of(make_run(tmp_path / "run", recipe))
    data = ModelCard(text).data
    assert data.language == language
    assert data.get("language_bcp47") == bcp47
    assert f"\n# tiny: {title}\n" in text


def test_a_language_without_a_code_is_asked_for(tmp_path):
    recipe = {"data": {"source_language": "english", "target_language": "de", "train_files": "train"}}
    text = str(build_card(make_run(tmp_path / "run", recipe), "ada/tiny"))
    with pytest.raises(ValueError, match=r"language is missing.*ISO 639"):
        check_card(text)
    check_card(text.replace("---\n", "---\nlanguage: [en, de]\n", 1))


def test_a_run_that_goes_on_shows_its_best_evaluation(tmp_path):
    better = {**VALIDATION, "step": 10, "bleu": 40.0}
    folder = make_run(tmp_path / "run", None, [TRAIN, better, VALIDATION])
    text = card_of(folder)
    assert {result.metric_value for result in ModelCard(text).data.eval_results} == {40.0, 55.0}
    assert "of update 10" in section(text, "Results")
    assert "## Sample translations" not in text  # of an earlier end


def test_a_run_that_goes_on_and_has_not_translated(tmp_path):
    records = [{key: value for key, value in VALIDATION.items() if key not in SCORES}]
    recipe = {"evaluation": {"metric": "loss", "translate_every": 6}}
    data = ModelCard(card_of(make_run(tmp_path / "run", recipe, records))).data
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [("loss", 1.5)]


def test_evaluations_while_it_was_trained(tmp_path):
    """Of many some, evenly, the best and the last among them, each with the training loss that was logged before."""
    records = []
    for step in range(1, 101):
        bleu = {"bleu": 90.0 if step == 37 else step / 10, "chrf": 50.0} if step != 100 else {}
        records += [{**TRAIN, "step": step, "loss": step / 3}]
        records += [{"step": step, "epoch": 1.0, "split": "validation", "loss": 1.005, **bleu}]
    text = section(card_of(make_run(tmp_path / "run", None, [*records, FINAL])), "Results")
    (shown,) = re.findall(r"<details>.*?</details>", text, re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in shown.split("\n") if re.match(r"\| \d", line)]
    assert [int(row[0]) for row in rows] == sorted({*range(5, 101, 5), 37})
    assert rows[0] == ["5", "1.67", "1.00", "0.50", "50.00"]
    assert ["37", "12.33", "1.00", "90.00", "50.00"] in rows
    assert rows[-1][:3] == ["100", "33.33", "1.00"]


def test_license(run):
    assert ModelCard(card_of(run, license=" MIT ")).data.license == "mit"
    for license in ("", "  ", "my own\nlicense"):
        with pytest.raises(ValueError, match="license is"):
            build_card(run, "ada/tiny", license)


def test_other_architectures(tmp_path):
    config = {
        "decoder_vocab_size": 70,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "norm_position": "post",
        "norm_type": "rms_norm",
        "final_norm": False,
        "gated_ffn": True,
        "activation_function": "silu",
        "position_embedding_type": "learned",
        "attention_bias": False,
        "ffn_bias": False,
    }
    text = card_of(make_run(tmp_path / "run", **config))
    for row in (
        "Layers | 2 encoder, 3 decoder",
        "Attention heads | 4 in the encoder, 2 in the decoder",
        "Feed-forward width | 64 in the encoder, 48 in the decoder, silu, gated",
        "Norm | rms norm, after each sub-layer",
        "Positions | learned",
        "Vocabulary | 61 source and 70 target tokens",
        "Shared embeddings | none",
        "Biases | none",
        "Parameters | 20 (float32)",
    ):
        assert f"| {row} |" in text
    assert "More than 1,024 tokens are an error." in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", '{"split": "train", "step"\n', "metrics.jsonl, line 1: not JSON"),
        ("metrics.jsonl", '{"split": "train", "step": 1}\n', "no evaluation yet"),
        ("config.json", "{", "config.json: not JSON"),
        ("generation_config.json", None, "generation_config.json is missing"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", "damaged", "cannot be read as safetensors"),
        ("recipe.yaml", "a: 1\n", "recipe.yaml: .*unknown recipe key 'a'"),
    ],
)
def test_damaged_records_are_named(run, name, content, message):
    (run / name).unlink() if content is None else (run / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        build_card(run, "ada/tiny")


def test_bad_name(run):
    with pytest.raises(ValueError, match="a/b/c"):
        build_card(run, "a/b/c")


# -- merging -----------------------------------------------------------------------------------------------------------

BASE = """---
language:
- en
- de
license: apache-2.0
tags:
- translation
---

# tiny

What it is.

## Results

Old scores.

```yaml
## no heading
```

## Training

Old training.
"""
NEW = BASE.replace("Old", "New").replace("- translation", "- translation\n- scratch")


def front(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_nothing_edited():
    assert merge_card(NEW, BASE, BASE) == NEW
    assert merge_card(BASE, BASE, BASE) == merge_card(BASE, BASE, None) == BASE


EDITS = {
    "value": ("license: apache-2.0", "license: mit", ["license: mit", "New scores", "- scratch"], []),
    "key added": ("license:", "thumbnail: x.png\nlicense:", ["- de\nthumbnail: x.png\nlicense:"], []),
    "key removed": ("license: apache-2.0\n", "", ["- scratch"], ["license"]),
    "comment": ("license: apache-2.0", "# mine\nlicense: mit # why", ["- de\n# mine\nlicense: mit # why\ntags"], []),
    "section": ("Old scores.", "My scores.", ["My scores.", "New training."], ["New scores."]),
    "section added": (
        "## Training",
        "## Ethics\n\nMine.\n\n## Training",
        ["```\n\n## Ethics\n\nMine.\n\n## Training"],
        ["Old"],
    ),
    "section removed": ("## Training\n\nOld training.\n", "", ["New scores."], ["Training", "training"]),
    "section renamed": ("## Training", "## How it was trained", ["## How it was trained\n\nOld tr"], ["New training"]),
    "beginning": ("What it is.", "What I say.", ["# tiny\n\nWhat I say.\n\n## Results\n\nNew"], ["What it is."]),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edits_stay(edit, newline):
    old, new, present, absent = edit
    assert old in BASE
    edited = BASE.replace(old, new).replace("\n", newline)
    merged = merge_card(NEW, edited, BASE)
    assert (newline == "\n") == ("\r" not in merged)
    assert merged.replace(newline, "").count("\n") == 0
    text = merged.replace(newline, "\n")
    assert all(each in text for each in present)
    assert not any(each in text for each in absent)
    # Again, from whatever is known, nothing changes; and the next card comes in where nothing was edited.
    assert merge_card(NEW, merged, BASE) == merged
    assert merge_card(NEW, merged, NEW) == merged
    later = merge_card(NEW.replace("New", "Later"), merged, NEW).replace(newline, "\n")
    assert all(each.replace("New", "Later") in later for each in present)
    assert not any(each in later for each in absent)


def test_what_is_not_generated_any_more_goes():
    new = NEW.replace("license: apache-2.0\n", "").replace("## Training\n\nNew training.\n", "")
    merged = merge_card(new, BASE, BASE)
    assert "license" not in merged
    assert "Training" not in merged
    edited = BASE.replace("Old training", "My training").replace("apache-2.0", "mit")
    merged = merge_card(new, edited, BASE)
    assert "license: mit" in merged
    assert "My training" in merged


def test_what_is_generated_for_the_first_time_comes_to_its_place():
    new = NEW.replace("license:", "library_name: transformers\nlicense:").replace(
        "## Training", "## New\n\n## Training"
    )
    edited = BASE.replace("## Training", "## Mine\n\nMine.\n\n## Training")
    merged = merge_card(new, edited, BASE)
    assert list(front(merged)) == ["language", "library_name", "license", "tags"]
    assert re.findall("^## (.*)", merged, re.MULTILINE) == ["Results", "no heading", "New", "Mine", "Training"]


def test_unknown_base():
    """What differs was edited; what is not there was not removed."""
    edited = BASE.replace("apache-2.0", "mit").replace("Old scores", "My scores").split("## Training")[0]
    merged = merge_card(NEW, edited, None)
    assert front(merged) == {"language": ["en", "de"], "license": "mit", "tags": ["translation"]}
    assert "My scores." in merged
    assert "New training." in merged
    assert merge_card(NEW, merged, None) == merged


def test_a_readme_with_a_license_only():
    """As the Hub writes it when a repository is made in the browser."""
    assert merge_card(NEW, "---\nlicense: mit\n---\n", None) == NEW.replace("apache-2.0", "mit")
    assert merge_card(NEW, "", None) == NEW
    assert merge_card(NEW, "\ufeff# Mine\n", None).startswith("---\nlanguage:")


def test_types_and_spelling_of_values_stay():
    mine = 'version: "1.10"\nnumber: 1.50\nday: 2026-01-02\nflag: yes\nbig: 0x10\nlist: [a,   b]\n'
    mine += "text: |\n  one\n  # two\n"
    edited = BASE.replace("tags:", mine + "tags:")
    merged = merge_card(NEW, edited, BASE)
    assert mine in merged
    assert front(merged)["tags"] == ["translation", "scratch"]
    assert {key: front(merged)[key] for key in yaml.safe_load(mine)} == yaml.safe_load(mine)


def test_values_that_depend_on_each_other_stay():
    edited = BASE.replace("- translation", "- &name translation\nmore: *name")
    merged = merge_card(NEW, edited, BASE)
    assert front(merged)["more"] == "translation"
    gone = edited.replace("- translation", "").replace("tags:\n- &name translation", "tags: &name\n- translation")
    merged = merge_card(NEW, gone, BASE)  # the tags are generated, and their anchor goes with the old ones
    assert front(merged)["tags"] == ["translation", "scratch"]
    assert front(merged)["more"] == ["translation"]
    assert merge_card(NEW, merged, BASE) == merged
    flow = re.sub(
        r"---\n.*?---\n", "---\n{language: [en, de], license: mit, tags: [translation]}\n---\n", BASE, flags=16
    )
    assert front(merge_card(NEW, flow, BASE)) == {**front(NEW), "license": "mit"}


def test_sections_of_one_title_are_told_apart():
    edited = BASE + "\n## Results\n\nMore.\n"
    merged = merge_card(NEW, edited, BASE)
    assert merged == NEW + "\n## Results\n\nMore.\n"


def test_the_whole_way_with_a_real_card(trained):
    first = str(build_card(trained, "ada/tiny"))
    edited = first.replace("license: apache-2.0", "license: mit").replace("## Limits", "## Thanks\n\nAll.\n\n## Limits")
    edited = re.sub(r"## Sample translations\n.*?(?=## )", "", edited, flags=re.DOTALL)
    second = str(build_card(trained, "ada/other"))
    merged = merge_card(second, edited, first)
    check_card(merged, trained)
    assert merged == re.sub(
        r"## Sample translations\n.*?(?=## )",
        "",
        second.replace("license: apache-2.0", "license: mit").replace("## Limits", "## Thanks\n\nAll.\n\n## Limits"),
        flags=re.DOTALL,
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("license: apache-2.0", "license: [mit", r"the card, line 6, column 5: .*not valid YAML"),
        ("license: apache-2.0", "license: a: b", r"the card, line 5, column 11: .*not valid YAML: mapping values"),
        ("license: apache-2.0", "day: 2026-13-45", r"the card, line 2 and after: .*month must be in 1\.\.12"),
        ("license: apache-2.0", "license: mit\nlanguage: en", r"the card, line 6: the key 'language' is there twice"),
        ("- translation\n---", "- translation\n", r"the card, line 1: the metadata that starts here has no line ---"),
        ("language:\n- en\n- de\nlicense: apache-2.0\ntags:\n", "", r"the card, line 2: .*not a list"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_broken_metadata_is_named_with_its_line(old, new, message, newline):
    assert old in BASE
    edited = BASE.replace(old, new, 1).replace("\n", newline)
    with pytest.raises(ValueError, match=message):
        merge_card(NEW, edited, BASE)
    with pytest.raises(ValueError, match=message):
        check_card(edited)


# -- checking ----------------------------------------------------------------------------------------------------------

WRONG = {
    "no metadata": (r"^---\n.*?\n---\n", "", "language is missing.*license is missing.*model-index is missing"),
    "no license": ("license: apache-2.0", "license: ''", "license is missing"),
    "license is a list": ("license: apache-2.0", "license: [mit]", "license is .'mit'.; it must be text"),
    "license other": ("license: apache-2.0", "license: other", "needs license_name and license_link"),
    "language": ("- en\n", "- english\n", "language 'english' is no ISO 639 code"),
    "language of two": ("- en\n", "- xx\n", "language 'xx' is no ISO 639 code"),
    "language with region": ("- en\n", "- en-US\n", "language 'en-US' is no ISO 639 code.*language_bcp47"),
    "language read as false": ("- en\n", "- no\n", "needs quotes"),
    "tags": ("tags:\n", "tags: {lang}\nmore:\n", "tags is {'lang': None}"),
    "data set": ("license:", "datasets: [a b]\nlicense:", "datasets 'a b' is no name on the Hub"),
    "base model": ("license:", "base_model: /home/me/x\nlicense:", "base_model '/home/me/x' is no name on the Hub"),
    "model-index": ("    dataset:\n", "    data:\n", "huggingface_hub cannot read it.*KeyError"),
    "score": ("value: 31.25", "value: .nan", "sacrebleu is not a number"),
    "no score": ("value: 31.25", "value: [1]", r"sacrebleu is \[1\]; it must be a number"),
    "read otherwise": ("tags:\n", "tags:\n- translation\n", "tags is read by huggingface_hub as"),
    "key": ("license:", "1: x\nlicense:", "huggingface_hub cannot read it"),
    "title": ("\n# tiny", "\ntiny", "there is no title"),
    "section": ("## Results", "## Figures", "there is no section '## Results'"),
    "section in code": ("## Training", "```\n## Training\n```", "there is no section '## Training'"),
    "empty section": (r"(?s)## Results\n.*?## S", "## Results\n\n## S", "the section '## Results' is empty"),
    "template": ("## Citation", "[More Information Needed]\n\n## Citation", "is a placeholder"),
    "jinja": ("## Citation", "By {{ author }}.\n\n## Citation", "'{{ author }}' is a placeholder"),
    "image": (r"\(curves.png\)", "(curve.png)", "the link to 'curve.png': there is no such file"),
    "link": ("## Citation", "[x](docs/a.md#b)\n\n## Citation", "the link to 'docs/a.md#b': there is no such"),
    "reference": ("## Citation", "[x]: a.md\n\n## Citation", "the link to 'a.md': there is no such"),
    "html": ("## Citation", '<img width="9" src="a.png">\n\n## Citation', "the link to 'a.png': there is no such"),
    "absolute": ("## Citation", "![x](/home/me/a.png)\n\n## Citation", "'/home/me/a.png' leads out"),
    "outside": ("## Citation", "![x](a/../../b.png)\n\n## Citation", "leads out of the repository"),
    "token": ("## Citation", "hf_" + "a1B2" * 8 + "\n\n## Citation", "looks like a token"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(run, case):
    pattern, replacement, message = case
    text, count = re.subn(pattern, replacement, card_of(run), count=1, flags=re.DOTALL)
    assert count
    with pytest.raises(ValueError, match=message) as error:
        check_card(text, run)
    assert "hf_a1B2" not in str(error.value)


def test_all_that_is_wrong_is_named_at_once(run):
    text = card_of(run).replace("license: apache-2.0\n", "").replace("## Results", "## Figures")
    with pytest.raises(ValueError, match=r"license is missing; .*no section '## Results'"):
        check_card(text, run)


RIGHT = {
    "other sections": "[here](recipe.yaml), [there](<samples.md>), [up](#results), <https://a.b>, [w](https://a.b/c.md)",
    "code": "`[x](nowhere.md)` and `{{ x }}`\n\n```md\n![x](nowhere.png) {{ x }} [More Information Needed]\n```",
    "words": "hf_transfer is a package.",
    "query": '![x](curves.png?raw=true "with a title")',
}


@pytest.mark.parametrize("addition", RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes(run, addition):
    text = card_of(run).replace("## Citation", f"## Mine\n\n{addition}\n\n## Citation")
    check_card(text, run)
    check_card(text.replace("\n", "\r\n"), run)
    check_card(text)


def test_what_may_be_taken_out(run):
    text = re.sub(r"## (Sample translations|Curves|Citation)\n.*?(?=## |\Z)", "", card_of(run), flags=re.DOTALL)
    check_card(text, run)


def test_links_are_looked_for_only_in_a_folder(run, tmp_path):
    text = card_of(run)
    empty = tmp_path / "empty"
    empty.mkdir()
    check_card(text)
    with pytest.raises(ValueError, match=r"'curves\.png'"):
        check_card(text, empty)
    shutil.copy(run / "curves.png", empty)
    check_card(text, empty)
