"""`scratch distill` with teachers of other projects: Marian, M2M100, and the same in CTranslate2's format."""

import copy
import json
import shutil
from pathlib import Path

import ctranslate2
import pytest
import torch
from conftest import SMALL_RUN, few_sentences, read_metrics
from foreign_models import marian, randomise
from test_distillation import by_generate, distilled, read_pairs
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianTokenizer,
)
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES
from translators import LEARNT

from modeling_scratch.apps.experiments.teachers import LanguageTokens, load_teacher
from modeling_scratch.loading import load_translator
from modeling_scratch.recipe import find_recipe
from modeling_scratch.recipe.reading import load_recipe, recipe_text
from modeling_scratch.run.processes import StopRequest


def pieces_of(folder: Path) -> list[str]:
    """Train SentencePiece on both sides of the corpus, into spm.model, and return its pieces without special ones."""
    import sentencepiece

    texts = [text for pair in LEARNT for text in pair.values()]
    options = {"vocab_size": 150, "model_prefix": str(folder / "spm"), "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), **options)
    return [line.split("\t")[0] for line in (folder / "spm.vocab").read_text().splitlines()[3:]]


def learn(model, inputs, labels) -> None:
    """Train until translations differ and end."""
    labels = labels.masked_fill(labels == model.config.pad_token_id, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(40):
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():  # as in Marian's models, whose outputs begin from it; CTranslate2 relies on that
            model.get_input_embeddings().weight[model.config.pad_token_id] = 0
    model.eval()


def save_marian(folder: Path) -> Path:
    vocabulary = ["</s>", "<unk>", *pieces_of(folder), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(vocabulary)}))
    tokenizer = MarianTokenizer(*[str(folder / "spm.model")] * 2, str(folder / "vocab.json"))
    tokenizer.save_pretrained(folder)
    size = len(vocabulary)
    model = marian(vocab_size=size, pad_token_id=size - 1, decoder_start_token_id=size - 1, dropout=0.0)
    model.generation_config.no_repeat_ngram_size = None
    english, german = ([pair[side] for pair in LEARNT] for side in ("en", "de"))
    inputs = tokenizer(english, text_target=german, return_tensors="pt", padding=True)
    labels = inputs.pop("labels")
    learn(model, inputs, labels)
    model.double().save_pretrained(folder)  # so that translations do not depend on the batch
    return folder


def save_m2m(folder: Path) -> Path:
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(folder)]
    (folder / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(vocabulary)}))
    # As the files of M2M100's checkpoints name them; Transformers 5.24 forgets them otherwise.
    tokens = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    files, options = (str(folder / "vocab.json"), str(folder / "spm.model")), {"src_lang": "en", "tgt_lang": "de"}
    tokenizer = M2M100Tokenizer(*files, **options, additional_special_tokens=tokens)
    tokenizer.save_pretrained(folder)
    shape = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
    # The tokens of languages, and 8 without a meaning, follow the vocabulary.
    config = M2M100Config(vocab_size=len(vocabulary) + 108, max_position_embeddings=64, **shape, **heads)
    model = randomise(M2M100ForConditionalGeneration(config))
    english, german = ([pair[side] for pair in LEARNT] for side in ("en", "de"))
    inputs = tokenizer(english, text_target=german, return_tensors="pt", padding=True)
    labels = inputs.pop("labels")
    learn(model, inputs, labels)
    model.double().save_pretrained(folder)  # so that translations do not depend on the batch
    return folder


@pytest.fixture(scope="module", params=["marian", "m2m_100"])
def foreign(request, tmp_path_factory) -> tuple[Path, dict]:
    """A small model of another project, and the settings with which `generate` writes German."""
    pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("foreign") / request.param
    folder.mkdir()
    {"marian": save_marian, "m2m_100": save_m2m}[request.param](folder)
    german = {"forced_bos_token_id": AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("__de__")}
    return folder, {"forced_eos_token_id": None} | (german if request.param == "m2m_100" else {})


SENTENCES = [pair["en"] for pair in LEARNT[:12]]
LIMITS = {"batch_size": 8, "batch_tokens": 4096}
OPTIONS = (60, 30, LIMITS, "auto", torch.device("cpu"), StopRequest())  # of load_teacher, after n_best


def test_a_model_of_another_project_teaches_as_generate_translates(foreign, tmp_path):
    folder, settings = foreign
    recipe = tmp_path / "recipe.yaml"
    base = quick_recipe(recipe)
    student = distilled(folder, tmp_path / "student", config=str(recipe))
    pairs = read_pairs(tmp_path / "student-work")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.generation_config.forced_eos_token_id = None
    sources = list(dict.fromkeys(source for source, _ in pairs))
    most = base.evaluation.max_new_tokens
    assert len(sources) > 20
    expected = [p for text in sources for p in by_generate(model, tokenizer, tokenizer, text, 3, most, **settings)]
    assert pairs == expected
    assert load_recipe(student / "recipe.yaml").data.mix[0].translated_by == [folder.name]
    assert load_translator(str(student)).config.model_type == "scratch"
    assert read_metrics(student)[-1]["final"]


def quick_recipe(path: Path):
    """Write a recipe of a small run, without running it."""
    changes = [*SMALL_RUN, *few_sentences(30), f"output_dir={path.parent / 'x'}", "evaluation.max_new_tokens=30"]
    recipe = load_recipe(find_recipe("embedded"), changes)
    path.write_text(recipe_text(recipe))
    return recipe


def test_a_model_converted_by_ctranslate2_teaches_the_same(foreign, tmp_path):
    """In float32: sentences whose two best hypotheses are nearly as good may come out in the other order."""
    folder, settings = foreign
    shutil.copytree(folder, tmp_path / "float32")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    copy.deepcopy(model).float().save_pretrained(tmp_path / "float32")
    copied = [path.name for path in folder.iterdir() if path.suffix != ".safetensors" and path.name != "config.json"]
    converter = ctranslate2.converters.TransformersConverter(str(tmp_path / "float32"), copy_files=copied)
    converter.convert(str(tmp_path / "converted"))
    options = (
        ("en", "de"),
        2,
        60,
        30,
        {"batch_size": 8, "batch_tokens": 4096},
        "auto",
        torch.device("cpu"),
        StopRequest(),
    )
    found = load_teacher([str(tmp_path / "converted")], *options)([*SENTENCES, "", "word " * 70])
    assert found[-2:] == [[""], [""]]
    count = 0
    for sentence, row in zip(SENTENCES, found, strict=False):
        beams = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 30, "early_stopping": True}
        beams |= {"output_scores": True, "return_dict_in_generate": True}
        made = model.generate(**tokenizer(sentence, return_tensors="pt"), **settings | beams)
        if made.sequences_scores[0] - made.sequences_scores[1] > 1e-3:
            expected = tokenizer.decode(
                made.sequences[0][1 + ("forced_bos_token_id" in settings) :], skip_special_tokens=True
            )
            assert row[0] == expected.strip()
            count += 1
    assert count > len(SENTENCES) / 2


def test_languages_that_a_model_does_not_know_are_an_error(tmp_path):
    pytest.importorskip("sentencepiece")
    folder = save_m2m(tmp_path)
    with pytest.raises(ValueError, match="does not know the language tlh"):
        load_teacher([str(folder)], ("en", "tlh"), 2, *OPTIONS)
    with pytest.raises(ValueError, match=r"data\.source_language"):
        load_teacher([str(folder)], None, 2, *OPTIONS)


def test_sentences_longer_than_the_model_s_positions_are_not_translated(foreign):
    translate = load_teacher([str(foreign[0])], ("en", "de"), 2, 500, 500, *OPTIONS[2:])
    assert translate(["word " * 100, SENTENCES[0]])[0] == [""]


class OneVocabulary:
    """A tokenizer, as far as `LanguageTokens` uses it."""

    def __init__(self, *tokens: str):
        self.tokens = {token: index for index, token in enumerate(tokens)}

    def get_vocab(self) -> dict[str, int]:
        return self.tokens

    def convert_tokens_to_ids(self, tokens):
        return [self.tokens[token] for token in tokens] if isinstance(tokens, list) else self.tokens[tokens]


@pytest.mark.parametrize(
    ("tokens", "languages", "prefix", "target", "source"),
    [
        (["the", ">>deu<<", ">>nld<<"], ("en", "de"), ">>deu<< ", None, None),
        (["the", "<2de>", "<2en>"], ("en", "de"), "<2de> ", None, None),
        (["eng_Latn", "zho_Hans", "zho_Hant"], ("en", "zh"), "", "zho_Hans", "eng_Latn"),
        (["eng_Latn", "zho_Hans", "zho_Hant"], ("en", "zh-TW"), "", "zho_Hant", "eng_Latn"),
        (["en_XX", "pt_XX", "fr_XX"], ("pt-BR", "en"), "", "en_XX", "pt_XX"),
        (["the", "dog"], ("en", "de"), "", None, None),
    ],
)
def test_models_are_told_their_languages(tokens, languages, prefix, target, source):
    tokenizer = OneVocabulary(*tokens)
    found = LanguageTokens("a model", tokenizer, languages)
    assert (found.prefix, found.target, getattr(tokenizer, "src_lang", None)) == (prefix, target, source)
