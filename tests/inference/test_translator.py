"""The one function that translates a list: as `generate` does one by one, in order, each text tokenized once."""

import pytest
import torch
from texts import GOES_TO_A_TRANSLATOR
from translators import SENTENCES, by_hand, load, one_vocabulary, two_vocabularies

from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers, load_translator
from modeling_scratch.model.batched_generation import tokenize
from modeling_scratch.model.text import clean
from modeling_scratch.model.translations import best_texts


@pytest.fixture(scope="module")
def translator():
    folder = str(two_vocabularies())
    return Translator(load_translator(folder), *load_tokenizers(folder))


@pytest.fixture(scope="module")
def expected():
    found = by_hand(two_vocabularies(), SENTENCES)
    assert len(set(found)) > 3  # otherwise sentences that changed places would not show
    return found


@pytest.mark.parametrize("limits", [{}, {"batch_size": 1}, {"batch_size": 5}, {"batch_tokens": 40}, {"min_batches": 4}])
def test_translations_equal_generate_for_each_sentence_in_any_batches(limits, translator, expected):
    assert best_texts(translator.translate(SENTENCES, **limits)) == expected
    assert best_texts(translator.translate(SENTENCES[::-1], **limits)) == expected[::-1]
    assert translator.translate([], **limits) == []


def test_texts_without_letters_or_digits_stay_by_translator_and_pipeline(translator, monkeypatch):
    """Others are translated as `generate` does, from the tokens of the clean text."""
    texts, goes = list(GOES_TO_A_TRANSLATOR), list(GOES_TO_A_TRANSLATOR.values())
    cleaned = [clean(text) for text, reads in GOES_TO_A_TRANSLATOR.items() if reads]
    made = iter(by_hand(two_vocabularies(), cleaned))
    outputs = [next(made) if reads else text.strip().strip("\u200b") for text, reads in GOES_TO_A_TRANSLATOR.items()]
    ids = iter(translator.source_tokenizer(cleaned).input_ids)
    assert translator.tokenize(texts) == [next(ids) if reads else [] for reads in goes]
    found = translator.translate(texts, scores=True)
    assert best_texts(found) == outputs
    pipe = load(two_vocabularies())
    piped = pipe(texts, return_scores=True)
    assert [each["translation_text"] for each in piped] == outputs
    assert [each["score"] for each in piped] == pytest.approx([best.score for best, *_ in found])
    assert [best.score == 0 for best, *_ in found] == [not reads for reads in goes]
    monkeypatch.setattr(pipe.model, "generate", None)
    assert pipe(" ... ", num_return_sequences=2) == [{"translation_text": "...", "score": 0.0}] * 2
    pipe.task = "text2text-generation"
    with pytest.raises(TypeError):  # other pairs may be of punctuation: the model is called
        pipe("...")


def test_texts_without_letters_stay_and_are_not_translated(translator, expected, monkeypatch):
    texts = [" \u2026\n", f" {SENTENCES[0]}\n", "", SENTENCES[1]]
    assert best_texts(translator.translate(texts)) == ["\u2026", expected[0], "", expected[1]]
    monkeypatch.setattr(translator.model, "generate", None)
    assert [each.text for each in translator.translate(["?!"], num_return_sequences=2)[0]] == ["?!"] * 2


def test_batches_respect_their_limits_and_progress_counts_texts(translator):
    done, sizes = [], []

    def watched(batches, settings):
        sizes.extend([len(tokens), len(tokens) * max(map(len, tokens))] for _, tokens in batches)
        return [translator.translate_batch(*batch, **settings) for batch in batches]

    translator.translate([*SENTENCES, ""], batch_tokens=60, map_batches=watched, progress=done.append, num_beams=1)
    assert max(tokens for _, tokens in sizes) <= 60
    assert 3 < len(sizes) < len(SENTENCES)
    assert done == [1, *(size for size, _ in sizes)]
    sizes.clear()
    translator.translate(SENTENCES, min_batches=3, map_batches=watched, num_beams=1)
    assert len(sizes) >= 3


def test_scores_cuts_and_alignments_belong_to_their_translations(translator):
    several = translator.translate(SENTENCES[:3], scores=True, align=1, num_beams=3, num_return_sequences=2)
    for text, row in zip(SENTENCES, several, strict=False):
        (alone,) = translator.translate([text], scores=True, num_beams=3, num_return_sequences=2)
        assert [each.text for each in row] == [each.text for each in alone]
        assert [each.score for each in row] == pytest.approx([each.score for each in alone])
        assert row[0].score < 0
        assert row[0].weights.shape == (len(row[0].text.split()), len(text.split()))
        torch.testing.assert_close(row[0].weights, translator.aligner.weights([text], [row[0].text])[0])
        assert row[1].weights is None
    cut, whole = (translator.translate(SENTENCES[:1], max_new_tokens=most)[0][0].is_cut for most in (1, 200))
    assert (cut, whole) == (True, False)


def test_each_text_is_tokenized_once(translator, monkeypatch):
    counted, tokenizer = [], translator.source_tokenizer
    monkeypatch.setattr(
        "modeling_scratch.inference.translate.tokenize",
        lambda _, texts, limit, **options: counted.append(len(texts)) or tokenize(tokenizer, texts, limit),
    )
    tokens = translator.tokenize(SENTENCES)
    translator.translate(SENTENCES, tokens, batch_size=5, max_new_tokens=2)
    assert counted == [len(SENTENCES)]


def test_only_learned_positions_limit_a_source(make_model):
    tokenizers = load_tokenizers(str(one_vocabulary()))
    short = {"vocab_size": 300, "max_position_embeddings": 4}
    with pytest.raises(ValueError, match=r"input 1 has \d+ tokens, but the model takes 4"):
        Translator(make_model(**short, position_embedding_type="learned"), *tokenizers).translate(["a", SENTENCES[0]])
    Translator(make_model(**short), *tokenizers).translate([SENTENCES[0]], max_new_tokens=2)


def test_training_mode_is_restored(translator):
    translator.model.train()
    translator.translate(SENTENCES[:1], max_new_tokens=2)
    assert translator.model.training
    translator.model.eval()
