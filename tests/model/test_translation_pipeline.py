"""The translation pipeline gives the results of `generate`, with and without this project installed."""

import copy
import json
import os
import pickle
import shutil
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from conftest import SMALL_MODEL, run_command
from datasets import Dataset
from search_cases import log_probabilities
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, GenerationMixin, pipeline
from transformers.pipelines.pt_utils import KeyDataset
from translators import CORPUS, SENTENCES, by_hand, load, make_folder

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration, ScratchTranslationPipeline
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.model.batched_generation import generate_batch
from modeling_scratch.model.translations import best_texts

SETTINGS = [{}, {"num_beams": 1}, {"num_beams": 2, "length_penalty": 0.2, "max_new_tokens": 12}, {"min_new_tokens": 16}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {"one": make_folder(root / "one"), "two": make_folder(root / "two", target_size=330)}


@pytest.fixture(scope="module")
def translator(folders):
    return load(folders["one"])


def plain(results: list[dict]) -> list[str]:
    assert all(set(result) == {"translation_text"} for result in results)
    return [result["translation_text"] for result in results]


@pytest.mark.parametrize(("name", "settings"), [("one", {}), *(("two", each) for each in SETTINGS)], ids=str)
def test_translations_equal_generate_for_each_sentence(name, settings, folders):
    sentences = SENTENCES[:6]
    expected = by_hand(folders[name], sentences, **settings)
    assert len(set(expected)) > 2  # otherwise exchanged sentences would go unnoticed
    assert plain(load(folders[name])(sentences, **settings)) == expected
    assert plain(load(folders[name], **settings)(sentences)) == expected


@pytest.mark.parametrize(
    "batches", [{"batch_size": 1}, {"batch_size": 5}, {"batch_tokens": 1}, {"batch_tokens": 50}], ids=str
)
def test_translations_do_not_depend_on_batches_or_order(batches, translator, folders):
    sentences, options = SENTENCES[:7], {"max_new_tokens": 8}
    expected = translator(sentences, **options)
    assert translator(sentences, **batches, **options) == expected
    assert load(folders["one"], **batches, **options)(sentences[::-1]) == expected[::-1]


def test_the_result_has_the_shape_of_the_input(translator):
    first, second = translator(SENTENCES[:2])
    assert translator(SENTENCES[0]) == [first]
    assert translator(SENTENCES[:1]) == [first]
    assert translator(tuple(SENTENCES[:2])) == [first, second]
    assert translator([]) == []
    several = translator(SENTENCES[:2], num_return_sequences=2)
    assert [len(each) for each in several] == [2, 2]
    assert all(set(each) == {"translation_text", "score"} for each in chain(*several))
    alone = translator(SENTENCES[0], num_return_sequences=2)
    assert [each["translation_text"] for each in alone] == [each["translation_text"] for each in several[0]]
    assert [each[0]["translation_text"] for each in several] == plain([first, second])
    config = GenerationConfig(num_beams=3, num_return_sequences=2, max_new_tokens=12)
    assert [len(each) for each in translator(SENTENCES[:2], generation_config=config)] == [2, 2]
    unscored = translator(SENTENCES[0], num_return_sequences=3, return_scores=False)
    assert len(plain(unscored)) == 3


def test_empty_sentences_are_not_translated(translator, monkeypatch):
    first = translator(SENTENCES[:1])[0]
    assert translator(["", SENTENCES[0], " \t"]) == [{"translation_text": ""}, first, {"translation_text": ""}]
    monkeypatch.setattr(translator.model, "generate", None)
    empty = {"translation_text": ""}
    assert translator("") == [empty]
    assert translator(["", "\n"]) == [empty, empty]
    assert translator("", return_scores=True) == [empty | {"score": 0.0}]
    both = translator("", num_return_sequences=2, num_beams=2, return_scores=None)
    assert both == [empty | {"score": 0.0}] * 2
    assert translator([""], num_return_sequences=3) == [[empty | {"score": 0.0}] * 3]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4, "num_return_sequences": 3},
        {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0, "max_new_tokens": 4},
        {"num_beams": 1},
        {"num_beams": 2, "decoder_start_token_id": 7},
        {"num_beams": 1, "do_sample": True, "temperature": 0.5, "top_k": 8, "num_return_sequences": 3},
    ],
    ids=str,
)
def test_scores_are_the_log_probabilities_of_the_translations(settings, folders):
    translator, (end, pad) = load(folders["two"]), (2, 0)
    is_sampled = settings.get("do_sample", False)
    batch = SENTENCES[:1] if is_sampled else SENTENCES[:5]  # samples depend on the batch
    torch.manual_seed(5)
    results = translator(batch, return_scores=True, **settings)
    found = [[each["score"] for each in (result if isinstance(result, list) else [result])] for result in results]
    for sentence, scores in zip(batch, found, strict=True):
        source = translator.tokenizer(sentence, return_tensors="pt")
        torch.manual_seed(5)
        sequences = GenerationMixin.generate(translator.model, **source, **settings)
        expected = log_probabilities(translator.model, source, sequences, [end], pad).tolist()
        assert scores == pytest.approx(sorted(expected, reverse=True) if is_sampled else expected, abs=1e-4)
    assert len(set(chain(*found))) > 1


def test_the_inherited_loops_give_no_scores(translator):
    settings = {"num_beams": 2, "num_return_sequences": 2, "use_cache": False}
    with pytest.raises(ValueError, match="return_scores"):
        translator(SENTENCES[0], **settings)
    assert translator(SENTENCES[0], return_scores=False, **settings) == translator(
        SENTENCES[0], **settings | {"use_cache": True, "return_scores": False}
    )


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, index):
        return SENTENCES[index]


def test_streams_are_translated_in_order_and_read_ahead_by_a_limit(translator, monkeypatch):
    translator = partial(translator, max_new_tokens=6)
    expected = [[result] for result in translator(SENTENCES)]
    assert len({result["translation_text"] for (result,) in expected}) > 2  # so that a change of order would be noticed
    dataset = Dataset.from_dict({"en": SENTENCES})
    for stream in (iter(SENTENCES), (each for each in SENTENCES), Texts(), KeyDataset(dataset, "en")):
        results = translator(stream, batch_size=2)
        assert iter(results) is results
        assert list(results) == expected
    assert translator(dataset["en"]) == [result for (result,) in expected]
    assert list(translator(iter([]))) == []
    # Nothing is read before a result is requested, and then a limited number.
    taken = []
    endless = (taken.append(index) or SENTENCES[index % 12] for index in range(10**9))
    results = translator(endless, batch_size=2)
    assert taken == []
    assert next(results) == expected[0]
    assert len(taken) == 32
    assert next(translator(endless, batch_size=1)) == expected[32 % 12]
    assert len(taken) == 33
    monkeypatch.setattr("modeling_scratch.model.translation_pipeline.SENTENCES_AHEAD", 5)
    results = translator(iter([*SENTENCES[:5], "a", "b", 7]))
    assert [next(results) for _ in range(5)] == expected[:5]
    with pytest.raises(ValueError, match=r"input 7 is of type int"):
        next(results)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["a", "b " * 60], {}, r"input 1 has \d\d\d? tokens, but the model takes 60"),
        (["a", None], {}, "input 1 is of type NoneType"),
        (["a", "b\ud800"], {}, "input 1 is not Unicode text"),
        ({"a": "b"}, {}, "input is of type dict"),
        (b"a", {}, "input is of type bytes"),
        (3, {}, "input is of type int"),
        ("a", {"batch_size": 0}, "batch_size is 0"),
        ("a", {"batch_size": "2"}, "batch_size is '2'"),
        ("a", {"batch_tokens": 0}, "batch_tokens is 0"),
        ("a", {"num_return_sequences": 0}, "num_return_sequences is 0"),
        # Arguments with a row for each sentence, since the pipeline sorts sentences by length.
        ("a", {"encoder_outputs": None, "attention_mask": None}, "attention_mask, encoder_outputs: "),
        ("a", {"num_beam": 4}, "num_beam"),
        ("a", {"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
    ],
)
def test_bad_input_is_named(inputs, options, message, translator):
    with pytest.raises(ValueError, match=message):
        translator(inputs, **options)


def test_white_space_is_a_space_and_invisible_characters_are_ignored(translator):
    first, second = SENTENCES[:2]
    odd = [f"{c}{first[:3]}{c}{first[3:]} {c}" for c in "\u200b\ufeff\u200e\u200f\u202a\u2060\u2066\u061c\u00ad"]
    assert translator([*odd, "\u200b \u200f", "\ufeff"]) == translator([first] * len(odd) + ["", ""])
    odd = [f" {first}\n", second.replace(" ", "\u00a0"), first.replace(" ", " \t")]
    assert translator(odd) == translator([first, second, first])


def test_arguments_of_every_pipeline_are_accepted(translator, folders):
    expected = translator(SENTENCES[:2])
    assert translator(SENTENCES[:2], num_workers=0) == expected
    assert load(folders["one"], num_workers=2, local_files_only=True)(SENTENCES[:2]) == expected


def test_scores_do_not_count_padding(translator):
    """Translations ended by `stop_strings` have padding in a batch but no end token."""
    settings = {"stop_strings": ["e"], "tokenizer": translator.tokenizer, "num_beams": 1, "return_scores": True}
    together = translator(SENTENCES, **settings)
    assert len({len(result["translation_text"]) for result in together}) > 1
    for sentence, result in zip(SENTENCES, together, strict=True):
        (alone,) = translator(sentence, **settings)
        assert result["translation_text"] == alone["translation_text"]
        assert result["score"] == pytest.approx(alone["score"], abs=1e-4)


def test_translations_end_where_learned_positions_end(tmp_path):
    source = train_tokenizer(iter([[pair["en"] for pair in CORPUS]]), 300)
    config = SMALL_MODEL | {"vocab_size": 300, "max_position_embeddings": 9, "position_embedding_type": "learned"}
    torch.manual_seed(0)
    model = ScratchForConditionalGeneration(ScratchConfig(**config)).eval()
    model.generation_config.update(max_new_tokens=50, suppress_tokens=[2])  # so that translations do not end earlier
    translator = ScratchTranslationPipeline(model, source)
    sequences, _ = generate_batch(model, [[5, 2]], max_new_tokens=9)
    assert sequences.shape == (1, 1, 10)
    nine = translator("a", return_scores=True, max_new_tokens=9)
    assert translator("a", return_scores=True) == translator("a", return_scores=True, max_new_tokens=10) == nine


def test_the_longest_source_that_the_model_takes_is_translated(translator):
    sentence = "b"
    while len(translator.tokenizer(sentence).input_ids) < 60:
        sentence += " b"
    assert len(translator.tokenizer(sentence).input_ids) == 60
    assert translator(sentence) == translator(sentence, batch_size=1)
    with pytest.raises(ValueError, match="input 0 has 61 tokens"):
        translator(sentence + " b")


def test_the_class_takes_a_model_in_memory(folders):
    model, (source, target) = AutoModelForSeq2SeqLM.from_pretrained(folders["two"]), load_tokenizers(folders["two"])
    expected = load(folders["two"])(SENTENCES)
    model.train()
    for given in ({}, {"target_tokenizer": target}):  # without it, it is loaded from the model's folder
        assert ScratchTranslationPipeline(model=model, tokenizer=source, **given)(SENTENCES) == expected
    assert model.training
    copied = ScratchForConditionalGeneration(model.config).double().eval()
    copied.load_state_dict(model.state_dict())
    copied.generation_config = model.generation_config
    copied.config.name_or_path = copied.name_or_path = ""
    assert ScratchTranslationPipeline(copied, source, target)(SENTENCES) == expected
    with pytest.raises(ValueError, match="target_tokenizer"):
        ScratchTranslationPipeline(copied, source)
    with pytest.raises(ValueError, match="tokenizer"):
        ScratchTranslationPipeline(copied)


def test_pipeline_takes_a_model_in_memory_and_leaves_its_config_unchanged(folders):
    """See docs/hub.md."""
    model, tokenizer = (each.from_pretrained(folders["two"]) for each in (AutoModelForSeq2SeqLM, AutoTokenizer))
    before = repr(model.config)
    for _ in range(2):
        made = pipeline(
            "translation",
            model=model,
            config=model.config,
            tokenizer=tokenizer,
            pipeline_class=ScratchTranslationPipeline,
        )
        assert made(SENTENCES) == load(folders["two"])(SENTENCES)
    assert repr(model.config) == before


# -- the target's tokenizer --------------------------------------------------------------------------------------------


def test_two_vocabularies_of_the_same_size_are_distinguished(tmp_path):
    folder = make_folder(tmp_path / "even", target_size=300, updates=0)
    assert load(folder).target_tokenizer.get_vocab() == load_tokenizers(str(folder))[1].get_vocab()
    assert load(folder).target_tokenizer.get_vocab() != load(folder).tokenizer.get_vocab()
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.config.name_or_path = model.name_or_path = ""
    with pytest.raises(ValueError, match="target_tokenizer"):
        ScratchTranslationPipeline(model, tokenizer)


@pytest.mark.parametrize("spoil", [shutil.rmtree, lambda folder: (folder / "tokenizer.json").write_text("{")])
def test_a_target_tokenizer_that_cannot_be_loaded_is_an_error(spoil, folders, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(folders["two"], folder)
    spoil(folder / "target_tokenizer")
    with pytest.raises(OSError, match=r"broken: .*target_tokenizer") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="target_tokenizer"):
        load_tokenizers(str(folder))
    expected = load(folders["two"])
    assert load(folder, target_tokenizer=expected.target_tokenizer)(SENTENCES) == expected(SENTENCES)


def test_for_one_vocabulary_no_other_tokenizer_is_looked_up(folders, monkeypatch):
    model, tokenizer = (
        AutoModelForSeq2SeqLM.from_pretrained(folders["one"]),
        AutoTokenizer.from_pretrained(folders["one"]),
    )
    model.name_or_path = "no/such-model"  # or a relative path, from another folder
    monkeypatch.setattr("modeling_scratch.model.translation_pipeline.hf_hub_download", None)
    assert ScratchTranslationPipeline(model, tokenizer).target_tokenizer is tokenizer


def test_offline_a_target_tokenizer_missing_from_the_cache_is_an_error(folders):
    repository = Path(os.environ["HF_HOME"]) / "hub" / "models--user--partial"
    commit = "c" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    left_out = shutil.ignore_patterns("target_tokenizer")
    shutil.copytree(folders["two"], repository / "snapshots" / commit, ignore=left_out)
    with pytest.raises(OSError, match=r"user/partial: .*target_tokenizer: .*(disk cache|local cache|offline)"):
        load("user/partial")
    with pytest.raises(ValueError, match="target_tokenizer"):
        load_tokenizers("user/partial")
    note = repository / ".no_exist" / commit / "target_tokenizer" / "tokenizer_config.json"
    note.parent.mkdir(parents=True)
    note.touch()
    with pytest.raises(OSError, match="target_tokenizer"):
        load("user/partial")


def test_a_model_is_loaded_from_a_subfolder(folders, tmp_path):
    shutil.copytree(folders["two"], tmp_path / "all" / "inner")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "all", subfolder="inner")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "all" / "inner")
    translator = ScratchTranslationPipeline(model, tokenizer)
    assert translator(SENTENCES) == load(folders["two"])(SENTENCES)
    source, target = load_tokenizers(str(tmp_path / "all"), subfolder="inner")
    assert (len(source), len(target)) == (300, 330)


def test_save_pretrained_refuses_to_push(folders, tmp_path):
    with pytest.raises(ValueError, match=r"call push_to_hub\(name\)"):
        load(folders["two"]).save_pretrained(tmp_path, push_to_hub=True, repo_id="you/name")
    assert list(tmp_path.iterdir()) == []


def test_a_pickled_model_has_no_token(folders):
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["one"], token="hf_secret", revision="v1")
    assert model.hub_options == {"token": "hf_secret", "revision": "v1"}
    assert b"hf_secret" not in pickle.dumps(model)
    assert copy.deepcopy(model).hub_options == {}


# -- code that travels -------------------------------------------------------------------------------------------------


def test_trusted_code_translates_the_same_and_untrusted_code_is_refused(folders):
    name = str(folders["two"])
    expected = load(name)(SENTENCES)
    trusted = pipeline(model=name, trust_remote_code=True)  # the config names the task
    assert trusted.task == "translation"
    assert type(trusted).__module__.startswith("transformers_modules.two.")
    assert trusted(SENTENCES) == expected
    assert trusted.target_tokenizer.get_vocab() == load_tokenizers(name)[1].get_vocab()
    again = pipeline("translation", model=name, trust_remote_code=True)  # the first call changed no class attribute
    assert json.loads(json.dumps(again.model.config.custom_pipelines)) == ScratchConfig().custom_pipelines
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        pipeline("translation", model=name)


def test_other_custom_pipelines_are_kept():
    other = {"back": {"impl": "other.Back", "pt": ["AutoModel"]}}
    config = ScratchConfig(custom_pipelines=other)
    assert config.custom_pipelines == ScratchConfig().custom_pipelines | other
    config.custom_pipelines["translation"]["pt"] = ()  # as transformers.pipelines.clean_custom_task does
    assert ScratchConfig().custom_pipelines["translation"]["pt"] == ["AutoModelForSeq2SeqLM"]


def test_a_model_of_other_pairs_generates_text(folders, tmp_path):
    """Its config names the task, in place of translation, and keeps it when loaded and saved."""
    folder = shutil.copytree(folders["one"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (impl,) = config["custom_pipelines"].values()
    (folder / "config.json").write_text(json.dumps(config | {"custom_pipelines": {"text2text-generation": impl}}))
    pipeline(model=str(folder), pipeline_class=ScratchTranslationPipeline).save_pretrained(tmp_path / "again")
    generator = pipeline(model=str(tmp_path / "again"), trust_remote_code=True)
    assert generator.task == "text2text-generation"
    expected = [{"generated_text": text} for text in plain(load(folders["one"])(SENTENCES))]
    assert generator(SENTENCES) == expected
    model, tokenizer = generator.model, generator.tokenizer
    assert ScratchTranslationPipeline(model, tokenizer)([*SENTENCES, ""]) == [*expected, {"generated_text": ""}]


@pytest.mark.parametrize("trust", [True, False])
def test_a_revision_of_a_repository_is_loaded_from_one_commit(trust, tmp_path):
    """Two revisions with different target tokenizers, in the cache of huggingface_hub."""
    repository = Path(os.environ["HF_HOME"]) / "hub" / f"models--user--two-{trust}"
    (repository / "refs").mkdir(parents=True)
    expected = {}
    for revision, commit, size in (("main", "a" * 40, 330), ("v1", "b" * 40, 350)):
        folder = make_folder(repository / "snapshots" / commit, size, updates=0)
        (repository / "refs" / revision).write_text(commit)
        expected[revision] = by_hand(folder, SENTENCES[:3])
    assert expected["main"] != expected["v1"]
    how = {"trust_remote_code": True} if trust else {"pipeline_class": ScratchTranslationPipeline}
    for revision, commit in (("main", "a" * 40), ("v1", "b" * 40)):
        for asked in (revision, commit, *([None] if revision == "main" else [])):
            translator = pipeline("translation", model=f"user/two-{trust}", revision=asked, **how)
            assert len(translator.target_tokenizer) == (330 if revision == "main" else 350)
            assert translator.model.hub_options["revision"].resolved == commit
            assert plain(translator(SENTENCES[:3])) == expected[revision]
        command = Translator.load([f"user/two-{trust}"], revision)  # scratch translate
        assert best_texts(command.translate(SENTENCES[:3])) == expected[revision]
    assert trust == type(translator).__module__.startswith("transformers_modules.user.")


# Runs without this project: load, translate, and save again, with the pipeline and with each Auto class.
ALONE = """
import sys, json
sys.modules["modeling_scratch"] = None
from pathlib import Path
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoModelForTextEncoding, AutoTokenizer, pipeline
root, sentences = Path(sys.argv[1]), json.loads(sys.argv[2])
folder, copy, copy_by_pipeline = (str(root / each) for each in ("first", "second", "by_pipeline"))
translator = pipeline("translation", model=folder, trust_remote_code=True)
for part in (translator, translator.model):
    assert type(part).__module__.startswith("transformers_modules."), type(part).__module__
print(json.dumps(translator(sentences)))
translator.save_pretrained(copy_by_pipeline)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
model.save_pretrained(copy)
AutoTokenizer.from_pretrained(folder, trust_remote_code=True).save_pretrained(copy)
translator.target_tokenizer.save_pretrained(copy + "/target_tokenizer")
states = model.eval().get_encoder()(ids := torch.tensor([[5, 6, 2]])).last_hidden_state
for auto_class in (AutoModel, AutoModelForTextEncoding):
    path = str(root / auto_class.__name__)
    auto_class.from_pretrained(folder, trust_remote_code=True).save_pretrained(path)
    head = auto_class.from_pretrained(path, trust_remote_code=True).eval()
    assert torch.equal(head.get_encoder()(ids).last_hidden_state, states), path
"""


@pytest.mark.slow
def test_copies_and_copies_of_copies_have_the_same_code_config_and_translations(folders, tmp_path):
    """Saved where this project is not installed."""
    shutil.copytree(folders["two"], tmp_path / "first")
    sentences = [*SENTENCES[:4], ""]
    arguments = [str(tmp_path), json.dumps(sentences)]
    settings = {"PYTHONPATH": "", "HF_HOME": str(tmp_path / "home"), "TQDM_DISABLE": "1"}
    result = run_command("-c", ALONE, *arguments, **settings)
    assert result.returncode == 0, result.stderr
    shutil.rmtree(tmp_path / "first")
    translations = json.loads(result.stdout)
    assert plain(translations) == [*by_hand(folders["two"], sentences[:-1]), ""]
    for saver in ("second", "by_pipeline"):
        translator = pipeline("translation", model=str(tmp_path / saver), trust_remote_code=True)
        assert type(translator).__module__.startswith("transformers_modules.")
        assert translator(sentences) == translations
        translator.save_pretrained(tmp_path / f"from_{saver}")
        assert load(tmp_path / f"from_{saver}")(sentences[:-1]) == translations[:-1]
        for saved in (tmp_path / saver, tmp_path / f"from_{saver}"):
            assert_same_code_and_config(saved, folders["two"])


def assert_same_code_and_config(saved: Path, original: Path) -> None:
    code, expected = ({path.name: path.read_bytes() for path in each.glob("*.py")} for each in (saved, original))
    assert {"translation_pipeline.py", "modeling_scratch.py", "configuration_scratch.py"} < set(code)
    assert code == expected
    config, expected = (json.loads((each / "config.json").read_text()) for each in (saved, original))
    assert config == expected
