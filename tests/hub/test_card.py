"""A model card shows the records of a run, and an update keeps the edits of its owner."""

import importlib.metadata
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from conftest import SMALL_MODEL, quick_run, read_metrics
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.apps.convert.generation_settings import SearchSettings
from modeling_scratch.apps.web.run_facts import facts_of, records_of
from modeling_scratch.apps.web.transformersjs import card_of_folder
from modeling_scratch.hub.card import BEGIN, END, build_card, check_card, license_of, marian_card, updated_card
from modeling_scratch.metrics import METRICS, describe_score
from modeling_scratch.run.records import RunRecords

MARKUP = "A | B <script>alert(1)</script> **bold** [link](nowhere.md) {{ name }} `code` \\ _x_ &amp; $y$"
SAMPLES = [
    {"source": "A cat sleeps.", "reference": "Eine Katze schläft.", "translation": "Eine Katze schläft."},
    {"source": MARKUP, "reference": "two\nlines", "translation": "a key hf_abcdefghijklmnopqrstuvwxyz012345"},
]
BLEU, CHRF = "nrefs:1|case:mixed|tok:13a|version:2.6.0", "nrefs:1|case:mixed|nc:6|version:2.6.0"
SCORES = {"bleu": 31.25, "chrf": 57.123456789}
SIGNATURES = {"bleu_signature": BLEU, "chrf_signature": CHRF}
TRAIN = {"step": 20, "epoch": 1.5, "split": "train", "loss": 2.0, "cross_entropy": 1.25}
TRAIN |= {"target_tokens": 12345, "seconds": 75.4}
VALIDATION = {"step": 20, "epoch": 1.5, "split": "validation", "loss": 1.5, "bleu": 30.0, "chrf": 55.0}
FINAL = {"step": 20, "epoch": 1.5, "split": "test", "final": True, "num_beams": 4, **SCORES, **SIGNATURES}
FINAL |= {"samples": SAMPLES}
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


def make_run(folder: Path, recipe: dict | None = None, records: list[dict] | None = None, **config) -> Path:
    """The files of a run that a card is made from."""
    folder.mkdir(parents=True)
    content = {"output_dir": "runs/made", "optimization": {"max_epochs": 1}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content | (recipe or {})))
    ScratchConfig(**(SMALL_MODEL | config)).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"num_beams": 4, "length_penalty": 0.6, "max_new_tokens": 64}')
    records = [TRAIN, VALIDATION, FINAL] if records is None else records
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "curves.png").write_bytes(b"PNG")
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(8)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(tmp_path / "runs" / "made")


def card_of(folder: Path, **options) -> str:
    """The card of a run, checked for completeness."""
    return updated_card(folder, "ada/tiny", RunRecords(folder), **options)


def section(text: str, title: str) -> str:
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1].strip()


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


# -- the card of a run -------------------------------------------------------------------------------------------------


def test_the_metadata_describes_the_model_and_its_scores(run):
    data = ModelCard(card_of(run)).data
    task = {"task_type": "translation", "task_name": "Translation en-de", "dataset_type": "embedded"}
    for result in data.eval_results:
        assert task.items() <= vars(result).items()
        assert (result.dataset_name, result.dataset_split) == ("the embedded corpus of modeling_scratch", "test")
    assert [(result.metric_type, result.metric_value, result.metric_args) for result in data.eval_results] == [
        ("sacrebleu", 31.25, {"signature": BLEU}),
        ("chrf", 57.12, {"signature": CHRF}),
    ]
    assert {key: value for key, value in data.to_dict().items() if key != "model-index"} == {
        "language": ["en", "de"],
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "metrics": ["sacrebleu", "chrf"],
        "tags": ["translation", "scratch", "attention-is-all-you-need"],
        "widget": [
            {"text": "A cat sleeps.", "output": {"text": "Eine Katze schläft."}},
            {"text": MARKUP, "output": {"text": "a key hf_..."}},
        ],
    }


def test_the_tables_show_the_recorded_scores_sizes_and_versions(trained):
    text = card_of(trained)
    card = ModelCard(text)
    assert str(card) == text
    final = [record for record in read_metrics(trained) if record.get("final")]
    found = {(r.dataset_split, r.metric_type): (r.metric_value, r.metric_args) for r in card.data.eval_results}
    for record in final:
        computed = {key: metric for key, metric in METRICS.items() if not metric.on_request}
        for key, metric in computed.items():
            value, arguments = float(f"{record[key]:.2f}"), {"signature": record[f"{key}_signature"]}
            assert found.pop((record["split"], metric.hub_id)) == (value, arguments)
        shown = " | ".join(describe_score(record, key) for key in computed)
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


def test_the_card_contains_the_whole_recipe_but_for_paths(trained):
    text = card_of(trained)
    shown = yaml.safe_load(re.search(r"```yaml\n(.*?)\n```\n\n</details>", text, re.DOTALL)[1])
    recipe = yaml.safe_load((trained / "recipe.yaml").read_text())
    recipe.pop("hub", None)
    recipe["data"] |= {f"{split}_files": [split] for split in ("train", "validation", "test")}
    assert shown == recipe | {"output_dir": trained.name}


@pytest.mark.parametrize("two", [False, True], ids=["one vocabulary", "two vocabularies"])
def test_the_example_code_runs(trained, tmp_path, two, capsys):
    folder = trained
    if two:
        folder = quick_run(tmp_path / "run", "tokenizer.shared=false", "optimization.max_steps=2")
    text = card_of(folder)
    assert ("target_tokenizer" in text) == two
    blocks = python_blocks(text)
    pipeline = [block for block in blocks if "import pipeline" in block]
    assert len(pipeline) == ("custom_pipelines" in json.loads((folder / "config.json").read_text()))
    names: dict = {}
    for block in pipeline + [block for block in blocks if block not in pipeline]:
        exec(block.replace("ada/tiny", str(folder)), names)
    assert capsys.readouterr().out
    assert "generate(" in text


def test_markup_in_samples_is_escaped_and_tokens_are_redacted(run):
    text = card_of(run)
    rows = section(text, "Samples").split("\n")[2:]
    assert rows[0] == "| English | Reference | Translation |"
    assert rows[2] == "| A cat sleeps. | Eine Katze schläft. | Eine Katze schläft. |"
    assert len(rows) == 4
    cells = rows[3].split(" | ")
    assert len(cells) == 3
    assert not set("<>`*[]{}$\\~_") & set(cells[0])
    assert cells[1] == "two<br>lines"
    shown = re.sub(r"&#(\d+);", lambda match: chr(int(match[1])), cells[0]).removeprefix("| ")
    assert shown == MARKUP
    assert "hf_abc" not in text


def test_hardware_and_versions_come_from_the_last_start_of_the_run(tmp_path):
    older = {"step": 0, "epoch": 0.0, "split": "run", **MACHINE, "device_name": "Old"}
    newer = {"step": 10, "epoch": 0.7, "split": "run", **MACHINE}
    recipe = {"optimization": {"max_epochs": 1, "optimizer": "muon"}}
    text = card_of(make_run(tmp_path / "run", recipe, [older, newer, TRAIN, VALIDATION, FINAL]))
    for shown in (
        "| Hardware | CPU: Some &#124; Processor, 2 processes |",
        "| Precision | float32 |",
        "| Optimizer | Muon ",
        "29,000 pairs",
        "torch 2.13.0, transformers 5.23.0",
        "1 min 15 s",
    ):
        assert shown in section(text, "Training")
    assert "modeling_scratch 0.1.0." in text


PATHS = {
    "output_dir": "/home/me/secret/runs/made",
    "tokenizer": {"existing": "/home/me/secret/tokenizer"},
    "data": {
        "train_files": ["/home/me/secret/train.en", "C:\\Users\\me\\secret\\train.de"],
        "validation_files": "../secret/dev.jsonl",
        "test_files": "~/secret/test|1.tsv",
    },
}
LOCAL = "home-me/secret/first"
RELATIVE_PATHS = {
    "model": {"start_from": LOCAL},
    "tokenizer": {"existing": LOCAL},
    "data": {
        "name": LOCAL,
        "mix": [
            {"name": LOCAL},
            {"name": "wmt/wmt14", "revision": "refs/convert/parquet"},
            {"files": f"{LOCAL}.tsv"},
        ],
        "test_sets": {"name": f"{LOCAL}.csv"},
    },
}
RELATIVE_SHOWN = ["start_from: first", "existing: first", "name: first", "- first.tsv", "- first.csv"]
RELATIVE_SHOWN += ["name: wmt/wmt14", "revision: refs/convert/parquet"]


@pytest.mark.parametrize(
    ("recipe", "shown"),
    [
        (PATHS, ["output_dir: made", "existing: tokenizer", "dev.jsonl", "local files (train.en, train.de)"]),
        (RELATIVE_PATHS, RELATIVE_SHOWN),
    ],
)
def test_of_local_paths_the_card_shows_only_the_last_name(recipe, shown, tmp_path):
    text = card_of(make_run(tmp_path / "run", recipe))
    for secret in ("secret", "home", "Users", "~/", str(tmp_path)):
        assert secret not in text
    for name in shown:
        assert name in text


def test_a_data_set_on_the_hub_is_linked_with_its_subset_and_splits(tmp_path):
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


def test_fine_tuned_weights_have_no_license_until_the_owner_states_one(tmp_path):
    folder = make_run(tmp_path / "run", {"model": {"start_from": "grace/en-de"}})
    assert ModelCard(card_of(folder)).data.license is None
    assert ModelCard(card_of(folder, license="CC-BY-4.0")).data.license == "cc-by-4.0"
    assert "License" not in dict(facts_of(folder, RunRecords(folder)))
    assert dict(facts_of(folder, RunRecords(folder), "mit"))["License"] == "mit"
    search = SearchSettings(1, 4, 1.0, False, 0, 9, [2], [])
    assert "license" not in card_of_folder(str(folder), ["en", "de"], search).partition("\n#")[0]


def test_facts_of_a_model_without_a_run_or_an_evaluation(tmp_path):
    assert facts_of(tmp_path, records_of(str(tmp_path)), "mit") == [("License", "mit")]
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Converted")
    assert facts_of(tmp_path, records_of(str(tmp_path))) == [("License", "mit")]
    begun = make_run(tmp_path / "begun", records=[TRAIN])
    assert dict(facts_of(begun, records_of(str(begun)))).keys() == {"Trained on", "License"}


def test_a_model_of_local_files_names_them_as_its_data_and_no_data_set_of_the_hub(tmp_path):
    """A prefix, such as train, stands for two files, and alone would be read as a word."""
    languages = {"source_language": "en", "target_language": "de"}
    for place, (given, named) in enumerate({"my/train": "train.en, train.de", "my/pairs.tsv": "pairs.tsv"}.items()):
        folder = make_run(tmp_path / str(place), {"data": {"train_files": given, "test_files": given, **languages}})
        assert dict(facts_of(folder, records_of(str(folder))))["Trained on"] == named
        text = card_of(folder)
        assert f"local files ({named})" in text
        data = ModelCard(text).data
        assert data.datasets is None
        assert {result.dataset_name for result in data.eval_results} == {named}


def test_mixed_sources_are_listed_with_weights_and_tags(tmp_path):
    mix = [{"name": "wmt/wmt14", "subset": "de-en"}, {"files": "/home/me/old_pairs", "weight": 0.1, "tag": "<bt>"}]
    text = card_of(make_run(tmp_path / "run", {"data": {"train_files": "/data/train", "mix": mix}}))
    assert ModelCard(text).data.datasets == ["wmt/wmt14"]
    named = "[wmt/wmt14](https://huggingface.co/datasets/wmt/wmt14) (de-en) and local files "
    named = f"local files (train.source, train.target) and {named}(old&#95;pairs.source, old&#95;pairs.target)"
    assert f"{named} (weight 0.1, tagged &#60;bt&#62;)" in section(text, "Training")


@pytest.mark.parametrize(
    ("name", "expected"), [("grace/en-de", "grace/en-de"), ("/home/me/first", None), ("./first", None), ("first", None)]
)
def test_only_a_model_on_the_hub_is_a_base_model(tmp_path, monkeypatch, name, expected):
    folder = make_run(tmp_path / "runs" / "made", {"model": {"start_from": name}})
    text = card_of(folder)
    assert ModelCard(text).data.base_model == expected
    assert "fine-tuned from" in text
    if expected:  # a folder of this name takes precedence, as in Transformers
        (tmp_path / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert ModelCard(card_of(folder)).data.base_model is None


@pytest.mark.parametrize(
    ("source", "target", "language", "bcp47", "title"),
    [
        ("de", "en", ["de", "en"], None, "German to English"),
        ("no", "sv", ["no", "sv"], None, "Norwegian to Swedish"),
        ("pt_BR", "zh-Hant", ["pt", "zh"], ["pt-BR", "zh-Hant"], "Portuguese (pt-BR) to Chinese (zh-Hant)"),
        ("EN", "deu", ["en", "de"], None, "English to German"),
    ],
)
def test_languages_become_iso_639_codes(tmp_path, source, target, language, bcp47, title):
    recipe = {"data": {"source_language": source, "target_language": target, "train_files": "train"}}
    text = card_of(make_run(tmp_path / "run", recipe))
    data = ModelCard(text).data
    assert data.language == language
    assert data.get("language_bcp47") == bcp47
    assert f"\n# tiny: {title}\n" in text


def test_a_language_without_a_code_is_reported(tmp_path):
    recipe = {"data": {"source_language": "english", "target_language": "de", "train_files": "train"}}
    folder = make_run(tmp_path / "run", recipe)
    text = str(build_card(folder, "ada/tiny", RunRecords(folder)))
    with pytest.raises(ValueError, match=r"language is missing.*ISO 639"):
        check_card(text)
    check_card(text.replace("---\n", "---\nlanguage: [en, de]\n", 1))


def test_an_unfinished_run_shows_its_best_evaluation(tmp_path):
    better = {**VALIDATION, "step": 10, "bleu": 40.0}
    text = card_of(make_run(tmp_path / "run", None, [TRAIN, better, VALIDATION]))
    assert {result.metric_value for result in ModelCard(text).data.eval_results} == {40.0, 55.0}
    assert "of update 10" in section(text, "Results")
    assert "## Samples" not in text
    loss_alone = [{key: value for key, value in VALIDATION.items() if key not in SCORES}]
    recipe = {"evaluation": {"metric": "loss", "translate_every": 6}}
    text = card_of(make_run(tmp_path / "loss", recipe, loss_alone))
    data = ModelCard(text).data
    assert "Loss is the cross-entropy of a target token, in nats.\n\n|" in text
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [("loss", 1.5)]


def test_evaluations_during_training_are_thinned_but_keep_the_best_and_the_last(tmp_path):
    """Each row also has the training loss that was logged before it."""
    records = []
    for step in range(1, 101):
        bleu = {"bleu": 90.0 if step == 37 else step / 10, "chrf": 50.0} if step != 100 else {}
        records += [{**TRAIN, "step": step, "cross_entropy": step / 3}]
        records += [{"step": step, "epoch": 1.0, "split": "validation", "loss": 1.005, **bleu}]
    text = section(card_of(make_run(tmp_path / "run", None, [*records, FINAL])), "Results")
    (shown,) = re.findall(r"<details>.*?</details>", text, re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in shown.split("\n") if re.match(r"\| \d", line)]
    assert [int(row[0]) for row in rows] == sorted({*range(5, 101, 5), 37})
    assert rows[0] == ["5", "1.67", "1.00", "0.50", "50.00"]
    assert ["37", "12.33", "1.00", "90.00", "50.00"] in rows
    assert rows[-1][:3] == ["100", "33.33", "1.00"]


def test_the_license_is_normalized_and_must_be_one_word(run):
    assert ModelCard(card_of(run, license=" MIT ")).data.license == "mit"
    for license in ("", "  ", "my own\nlicense"):
        with pytest.raises(ValueError, match="license is"):
            card_of(run, license=license)


def test_the_architecture_is_described_from_the_config(tmp_path):
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
        ("metrics.jsonl", '{"split": "train", "step"', "metrics.jsonl: no records yet"),
        ("metrics.jsonl", '{"split": "train", "step"\n', "metrics.jsonl: line 1 is damaged; delete it: Expecting"),
        ("metrics.jsonl", '{"split": "train", "step": 1}\n', "no evaluation yet"),
        ("config.json", "{", "config.json: cannot be read as JSON"),
        ("generation_config.json", None, "generation_config.json: no such file"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", "damaged", "cannot be read as safetensors"),
        ("recipe.yaml", "a: 1\n", "recipe.yaml: .*unknown recipe key 'a'"),
    ],
)
def test_an_unreadable_file_of_a_run_is_named(run, name, content, message):
    (run / name).unlink() if content is None else (run / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        card_of(run)


def test_every_test_set_has_a_row_and_a_result(tmp_path):
    others = [{"name": "newstest2014", "bleu": 27.31, "sentences": 3003}, {"name": "a|b", "bleu": 11.119}]
    records = [FINAL | {"sentences": 7, "bleu_interval": 1.25} | other for other in others]
    card = ModelCard(card_of(make_run(tmp_path / "run", None, [TRAIN, VALIDATION, FINAL, *records])))
    assert re.search(r"^\| newstest2014 \| 27\.31 ± 1\.25 \| .* \| 3,003 \|$", card.text, re.MULTILINE)
    assert "detokenized. BLEU: sacreBLEU's, of words, cased, 0 to 100; higher is better. chrF: " in card.text
    assert "higher is better. ± is half the 95 % interval over 1,000 bootstrap resamples of the sentences." in card.text
    assert re.search(r"^\| a&#124;b \| 11\.12 ± 1\.25 \| .* \| 7 \|$", card.text, re.MULTILINE)
    bleu = [
        (result.dataset_name, result.metric_value) for result in card.data.eval_results if result.metric_name == "BLEU"
    ]
    assert bleu[1:] == [("newstest2014", 27.31), ("a|b", 11.12)]


def test_the_card_says_how_kept_words_and_sentences_reach_the_model(run):
    assert "U+10FF00" not in card_of(run)
    (run / "tokenizer_config.json").write_text('{"reserved": 16, "splits_lines": true}')
    assert "The pipeline puts the character U+10FF00 in place" in (text := card_of(run))
    assert "split into sentences, which the pipeline does." in text
    marian = marian_card(run, "ada/marian", "ada/tiny", 1e-6, RunRecords(run)).text
    assert "copy characters, not words: put the character U+10FF00 in place" in marian
    assert "which the pipeline does" not in marian


# -- the card of a model without a run ---------------------------------------------------------------------------------


@pytest.fixture
def plain(make_model, tmp_path) -> Path:
    """A model saved by save_pretrained in several files, without a tokenizer."""
    make_model().save_pretrained(tmp_path / "plain", max_shard_size="100KB")
    return tmp_path / "plain"


def test_a_saved_model_has_a_card_without_invented_facts(plain):
    text = updated_card(plain, "ada/tiny", None, author="Ada *Lovelace*")
    assert not {"language", "license"} & ModelCard(text).data.to_dict().keys()
    model = ScratchForConditionalGeneration.from_pretrained(plain)
    assert f"| Parameters | {sum(p.numel() for p in model.parameters()):,} (float32) |" in text
    assert "Not measured" in text
    assert "Author: Ada &#42;Lovelace&#42;. Shared by [ada](https://huggingface.co/ada)." in text
    assert not re.search(r"None|nan|More Information Needed|\{\{", text)
    (code,) = python_blocks(text)
    exec(code.replace("ada/tiny", str(plain)), {})
    known = updated_card(plain, "ada/tiny", None, languages=("pt_BR", "de"))
    assert ModelCard(known).data.language == ["pt", "de"]
    assert "# tiny: Portuguese (pt-BR) to German" in known
    with pytest.raises(ValueError, match="--languages: 'english'"):
        updated_card(plain, "ada/tiny", None, languages=("english", "de"))


def test_a_converted_model_names_its_original_and_the_largest_difference(plain):
    (plain / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    (plain / "source.spm").write_bytes(b"")
    conversion = {"kind": "Marian model", "name": "Helsinki-NLP/opus-mt-en-de", "largest_difference": 2e-6}
    (plain / "conversion.json").write_text(json.dumps(conversion))
    card = ModelCard(updated_card(plain, "ada/tiny", None))
    assert card.data.base_model == "Helsinki-NLP/opus-mt-en-de"
    assert card.data.language == ["en", "de"]
    for text in ("torch, transformers and sentencepiece", "at most 2.0e-06, in float32", "# tiny: English to German"):
        assert text in card.text
    for wrong in ('{"kind": 1}', json.dumps(conversion | {"largest_difference": None})):
        (plain / "conversion.json").write_text(wrong)
        with pytest.raises(ValueError, match=r"conversion\.json"):
            updated_card(plain, "ada/tiny", None)


# -- the owner's edits -------------------------------------------------------------------------------------------------


def test_an_update_keeps_the_owners_text_and_metadata(run):
    first = card_of(run)
    edited = first.replace("license: apache-2.0", "license: mit\nthumbnail: a.png\nday: 2026-01-02")
    edited = edited.replace("- scratch\n", "- scratch\n- mine\n").replace(BEGIN, f"# My own\n\n{BEGIN}")
    edited = edited.replace("library_name: transformers", "library_name: other") + "\n## Thanks\n"
    final = FINAL | {"bleu": 99.0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [TRAIN, VALIDATION, final]))
    for before in (edited, edited.replace("\n", "\r\n")):
        card = card_of(run, before=before)
        front, _, body = card.partition("\n---\n\n")
        data = yaml.safe_load(front.removeprefix("---\n"))
        assert (data["license"], data["thumbnail"], str(data["day"])) == ("mit", "a.png", "2026-01-02")
        assert data["tags"][-1] == "mine"
        assert data["library_name"] == "transformers"
        assert body.startswith(f"# My own\n\n{BEGIN}\n\n# tiny: English to German\n")
        assert body.endswith(f"{END}\n\n## Thanks\n")
        assert "99.00" in body
        assert card_of(run, before=card) == card
    assert "license: gpl-3.0" in card_of(run, before=edited, license="gpl-3.0")
    (run / "README.md").write_text(edited)
    assert license_of(run, RunRecords(run)) == "mit"


def test_a_card_with_metadata_alone_gets_the_generated_text(run):
    """The Hub's form for a new repository writes such a card."""
    card = card_of(run, before="---\nlicense: mit\nmetrics: [bleu]\n---\n")
    assert ModelCard(card).data.license == "mit"
    assert BEGIN in card


@pytest.mark.parametrize("text", ["# Mine\n", f"# Mine\n{BEGIN}\n", f"# Mine\n{END}\n{BEGIN}\n"])
def test_a_card_without_both_markers_is_left_unchanged(run, text):
    assert card_of(run, before=text).endswith(f"---\n\n{text}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\nlicense: mit\n# Mine\n", "no line ---"),
        ("---\nlicense: mit\ntags: [a\n---\n", "line 3"),
        ("---\n- en\n---\n", "list"),
        ("---\n1: x\n---\n", "huggingface_hub"),
        (f"---\nlicense: mit\n---\nhf_{'a1B2' * 8}\n", "looks like a token"),
    ],
)
def test_a_mistake_in_the_owners_card_is_reported_without_its_token(run, text, message):
    with pytest.raises(ValueError, match=message) as error:
        card_of(run, before=text)
    assert "hf_a1B2" not in str(error.value)


def test_everything_missing_from_a_card_is_reported_at_once():
    with pytest.raises(ValueError, match=r"language is missing.*license is missing.*model-index is missing"):
        check_card("# tiny\n")
