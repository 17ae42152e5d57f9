"""Word links from cross-attention, the grammar's gold links, and the alignment error rate between them."""

import json
from types import SimpleNamespace

import pytest
import torch
from search_cases import enliven
from transformers import MarianTokenizer
from translators import CORPUS

from modeling_scratch.data.corpus import Grammar, gold_links, unmarked
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.inference.alignments import (
    Aligner,
    alignment_error_rate,
    average_heads,
    choose_heads,
    links_of,
    pharaoh,
)
from modeling_scratch.model.configuration_scratch import ScratchConfig

SOURCES, TARGETS = ([pair[language] for pair in CORPUS[:9]] for language in ("en", "de"))


@pytest.fixture(scope="module")
def tokenizers():
    return [train_tokenizer(iter([[pair[language] for pair in CORPUS]]), 300) for language in ("en", "de")]


@pytest.fixture
def model(make_model, tokenizers):
    sizes = [len(tokenizer) for tokenizer in tokenizers]
    fields = {"vocab_size": sizes[0], "decoder_vocab_size": sizes[1], "share_encoder_decoder_embeddings": False}
    return enliven(make_model(**fields), 3)


# -- attention set by hand ---------------------------------------------------------------------------------------------


class Copier:
    """Two layers of two heads; head [1, 0] attends where the source has the token to be predicted, [0, 1] the one read,
    the others to everything alike."""

    def __init__(self, pad: int, heads=None):
        self.config = ScratchConfig(decoder_layers=2, decoder_attention_heads=2, pad_token_id=pad)
        self.generation_config = SimpleNamespace(decoder_start_token_id=pad, alignment_heads=heads)
        self.device, self.training = torch.device("cpu"), False

    def eval(self):
        pass

    train = set_attn_implementation = lambda self, mode: None

    def __call__(self, input_ids, attention_mask, decoder_input_ids, **options):
        predicted = decoder_input_ids.roll(-1, dims=1)
        predicted[:, -1] = 0
        alike = torch.ones(len(input_ids), decoder_input_ids.shape[1], input_ids.shape[1])
        looks = [each[:, :, None] == input_ids[:, None] for each in (decoder_input_ids, predicted)]
        read, written = (each + 1e-3 * alike for each in looks)
        return SimpleNamespace(
            cross_attentions=(torch.stack([alike, read], dim=1), torch.stack([written, alike], dim=1))
        )


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A tokenizer without offsets."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("marian")
    texts = [text for pair in CORPUS for text in pair.values()]
    options = {"vocab_size": 200, "model_prefix": str(folder / "both"), "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), **options)
    pieces = [line.split("\t")[0] for line in (folder / "both.vocab").read_text().splitlines()[3:]]
    vocabulary = {piece: index for index, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return MarianTokenizer(*[str(folder / "both.model")] * 2, str(folder / "vocab.json"))


@pytest.fixture(params=["offsets", "no offsets"])
def shared(request, tokenizers):
    return tokenizers[1] if request.param == "offsets" else request.getfixturevalue("marian")


def test_words_made_of_the_same_tokens_are_linked(shared):
    source, target = "  Hunde sehen, Vögel singen  täglich", "singen Hunde täglich,  sehen Vögel"
    assert Aligner(Copier(shared.pad_token_id, [[1, 0]]), shared, shared).align([source], [target]) == [
        [(0, 1), (1, 3), (2, 4), (3, 0), (4, 2)]
    ]


def test_one_word_may_come_from_several():
    weights = torch.tensor([[0.9, 0.05, 0.05], [0.0, 0.6, 0.4]])  # (target words, source words)
    assert links_of(weights) == [(0, 0), (1, 1), (2, 1)]
    assert pharaoh(links_of(weights)) == "0-0 1-1 2-1"


RIGHT, WRONG = torch.eye(3), torch.eye(3).flip(0)


@pytest.mark.parametrize(
    ("heads", "best"),
    [
        ([[WRONG, WRONG], [RIGHT, 2 * WRONG]], [[1, 0]]),
        ([[2 * WRONG, 2 * WRONG], [3 * RIGHT, WRONG]], [[1, 0], [1, 1]]),
        ([[RIGHT, RIGHT], [RIGHT, WRONG]], None),
    ],
)
def test_the_best_heads_are_chosen(heads, best):
    """A head, a layer, or all; of equals, the one with more heads."""
    weights = torch.stack([torch.stack(layer) for layer in heads])
    assert choose_heads([weights], [[(0, 0), (1, 1), (2, 2)]]) == (best, 0.0)


def test_no_words_no_links(tokenizers):
    aligner = Aligner(Copier(0, [[1, 0]]), *tokenizers)
    assert aligner.align(["", "dogs", " "], ["Hunde", "", ""]) == [[], [], []]


@pytest.mark.parametrize("heads", [[[2, 0]], [[0, 2]], [[-1, 0]], [], [1, 0], 3])
def test_heads_that_are_not_there(heads, tokenizers):
    with pytest.raises(ValueError, match="from 0, of 2 decoder layers with 2 heads each"):
        Aligner(Copier(0, heads), *tokenizers)


# -- a model's own attention -------------------------------------------------------------------------------------------


def test_weights_are_the_attention_of_each_words_tokens(model, tokenizers):
    """Against one pass over one pair, and words found by the space before each."""
    source, target = "the old dogs sing", "die alten Hunde singen"
    rows = [
        tokenizer(text, return_tensors="pt").input_ids
        for tokenizer, text in zip(tokenizers, (source, target), strict=True)
    ]
    start = torch.tensor([[model.config.decoder_start_token_id]])
    model.set_attn_implementation("eager")
    outputs = model(input_ids=rows[0], decoder_input_ids=torch.cat([start, rows[1][:, :-1]], 1), output_attentions=True)
    words = [
        torch.tensor([token.startswith("Ġ") for token in tokenizer.convert_ids_to_tokens(row[0])]).cumsum(0) - 1
        for tokenizer, row in zip(tokenizers, rows, strict=True)
    ]
    (found,) = Aligner(model, *tokenizers).weights_by_head([source], [target])
    for layer, weights in enumerate(outputs.cross_attentions):
        for i in range(4):
            for j in range(4):
                tokens = weights[0, :, :-1][:, words[1][:-1] == j][:, :, :-1][:, :, words[0][:-1] == i]
                torch.testing.assert_close(found[layer, :, j, i], tokens.sum(dim=(1, 2)))


def test_batches_and_padding_change_nothing(model, tokenizers):
    aligner = Aligner(model, *tokenizers)
    together = aligner.weights(SOURCES, TARGETS)
    for source, target, weights in zip(SOURCES, TARGETS, together, strict=True):
        torch.testing.assert_close(aligner.weights([source], [target])[0], weights, rtol=0, atol=1e-5)


def test_the_start_token_may_be_in_the_config_alone(model, tokenizers):
    found = Aligner(model, *tokenizers).weights(SOURCES, TARGETS)
    model.generation_config.decoder_start_token_id = None
    again = Aligner(model, *tokenizers).weights(SOURCES, TARGETS)
    assert all(map(torch.equal, found, again))


def test_words_beyond_learned_positions_have_no_links(make_model, tokenizers):
    sizes = {"vocab_size": 300, "decoder_vocab_size": 300, "share_encoder_decoder_embeddings": False}
    model = make_model(position_embedding_type="learned", max_position_embeddings=6, **sizes)
    ((*_, last),) = Aligner(model, *tokenizers).align(["dogs"], ["Hunde " * 20])
    assert last[1] < 6


def test_the_model_is_left_as_it_was(model, tokenizers):
    model.train()
    Aligner(model, *tokenizers).align(SOURCES, TARGETS)
    assert (model.training, model.config._attn_implementation) == (True, "sdpa")


def test_heads_are_averaged():
    weights = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    expected = (weights[0, 2] + weights[1, 1]) / (weights[0, 2] + weights[1, 1]).sum(1, keepdim=True)
    torch.testing.assert_close(average_heads(weights, [[0, 2], [1, 1]]), expected)
    torch.testing.assert_close(average_heads(weights, None).sum(1), torch.ones(4))


# -- gold links --------------------------------------------------------------------------------------------------------

BY_HAND = [
    ("This horse paints no beautiful pictures.", "Dieses Pferd malt keine schönen Bilder.", "0-0 1-1 2-2 3-3 4-4 5-5"),
    (  # a modal, and a separable verb that is together
        "The children hope that my cat can listen to a clever brother.",
        "Die Kinder hoffen, dass meine Katze einem klugen Bruder zuhören kann.",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-10 7-9 8-9 9-6 10-7 11-8",
    ),
    (  # one that is split, and an adverb in front
        "Here my clever mice listen to an old horse with the strong brother.",
        "Hier hören meine klugen Mäuse einem alten Pferd mit dem starken Bruder zu.",
        "0-0 1-2 2-3 3-4 4-1 5-12 6-5 7-6 8-7 9-8 10-9 11-10 12-11",
    ),
    (  # a relative pronoun, an auxiliary and a participle
        "Our small men that have brought along a big cat sing.",
        "Unsere kleinen Männer, die eine große Katze mitgebracht haben, singen.",
        "0-0 1-1 2-2 3-3 4-8 5-7 6-7 7-4 8-5 9-6 10-9",
    ),
]


@pytest.fixture(scope="module")
def generated():
    grammar = Grammar(3)
    pairs = [grammar.marked_pair() for _ in range(3000)]
    return {tuple(map(unmarked, pair)): gold_links(*pair) for pair in pairs}


@pytest.mark.parametrize(("english", "german", "links"), BY_HAND)
def test_gold_links(english, german, links, generated):
    assert pharaoh(generated[english, german]) == links


def test_every_word_has_a_translation(generated):
    for (english, german), links in generated.items():
        assert {i for i, _ in links} == set(range(len(english.split())))
        assert {j for _, j in links} == set(range(len(german.split())))


# -- the error rate ----------------------------------------------------------------------------------------------------


def test_the_error_rate_is_that_of_och_and_ney():
    """By hand: A & S is {0-0}; 1 - (1 + 1) / (3 + 2)."""
    found, sure = [(0, 0), (2, 1), (2, 2)], [(0, 0), (1, 1)]
    assert alignment_error_rate([found], [sure]) == pytest.approx(60)
    assert alignment_error_rate([sure], [sure]) == 0


def test_the_error_rate_is_of_the_corpus_not_a_mean():
    """By hand: 1 - 2 * 3 / (4 + 4)."""
    found, sure = [[(0, 0)], [(0, 0), (1, 1), (2, 2)]], [[(0, 1)], [(0, 0), (1, 1), (2, 2)]]
    assert alignment_error_rate(found, sure) == pytest.approx(25)
