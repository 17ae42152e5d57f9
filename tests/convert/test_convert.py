"""
Conversions, against what was converted: MarianMTModel and torch.nn.Transformer with random weights, biases and norms
included, must give the same logits and, Marian, generate the same tokens.
"""

import copy
import json
import logging
import math
import runpy
import sys

import peft
import pytest
import torch
from conftest import run_command
from torch import nn
from transformers import AutoTokenizer, MarianConfig, MarianMTModel
from typer.testing import CliRunner

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration, ScratchModel
from modeling_scratch.commands import convert
from modeling_scratch.convert import from_marian, from_torch, to_marian, to_torch
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.loading import load_tokenizers, load_translator, save_tokenizers
from modeling_scratch.training.evaluation import translate

# torch's note that a faster path is not taken
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")

# -- models ----------------------------------------------------------------------------------------------------------

OPUS = {  # as OPUS-MT's checkpoints, but small
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "activation_function": "swish",
    "scale_embedding": True,
    "eos_token_id": 0,
    "pad_token_id": 60,
    "decoder_start_token_id": 60,
}
SHAPES = {
    "opus": {},
    "two vocabularies": {
        "decoder_vocab_size": 53,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 40,
        "activation_function": "gelu",
        "pad_token_id": 52,
        "decoder_start_token_id": 52,
    },
    "two vocabularies, tied": {
        "decoder_vocab_size": 70,
        "share_encoder_decoder_embeddings": False,
        "activation_function": "gelu_new",
    },
    "shared, not tied": {"tie_word_embeddings": False, "activation_function": "relu", "scale_embedding": False},
    "odd width": {"d_model": 33, "encoder_attention_heads": 3, "decoder_attention_heads": 11},
}


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every weight, bias and norm a random number, none 0 or 1."""
    random = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        if "embed_positions" not in name:
            weight.copy_(0.2 * torch.randn(weight.shape, generator=random) + ("norm" in name and "weight" in name))
    return module.eval()


def marian(shape: str = "opus", **fields) -> MarianMTModel:
    model = randomise(MarianMTModel(MarianConfig(**(OPUS | SHAPES[shape] | fields))))
    if shape == "shared, not tied":  # which Marian holds as two embeddings
        model.model.shared.load_state_dict(model.model.encoder.embed_tokens.state_dict())
        model.model.decoder.embed_tokens.load_state_dict(model.model.encoder.embed_tokens.state_dict())
    bias = model.final_logits_bias
    bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(1)))
    settings = {"max_length": 24, "num_beams": 4, "forced_eos_token_id": 0}
    settings["bad_words_ids"] = [[model.config.pad_token_id]]
    settings["no_repeat_ngram_size"] = 1  # random weights would say one token over and over
    model.generation_config.update(**settings)
    return model


@pytest.fixture(params=SHAPES)
def pair(request):
    model = marian(request.param)
    return model, from_marian(model)


def batch(model: MarianMTModel, sizes: tuple[int, ...] = (9, 14, 3), seed: int = 2) -> dict[str, torch.Tensor]:
    """Sentences of several lengths, padded on the right."""
    random, pad = torch.Generator().manual_seed(seed), model.config.pad_token_id
    mask = (torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]).long()
    ids = torch.randint(1, 50, mask.shape, generator=random)
    return {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}


def scratch(**fields) -> ScratchForConditionalGeneration:
    """A model that Marian can express, unless `fields` say otherwise."""
    defaults = {"norm_position": "post", "final_norm": False, "lm_head_bias": True, "vocab_size": 61, "d_model": 32}
    defaults |= {"encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = ScratchConfig(**(defaults | {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40} | fields))
    return randomise(ScratchForConditionalGeneration(config))


def identical(first: nn.Module, second: nn.Module) -> bool:
    first, second = first.state_dict(), second.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# -- Marian ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_marian_logits(pair):
    inputs = batch(pair[0])
    decoder_input_ids = torch.randint(0, 50, (3, 11), generator=torch.Generator().manual_seed(3))
    theirs, ours = (model(**inputs, decoder_input_ids=decoder_input_ids).logits for model in pair)
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


DECODING = {
    "as saved": {},
    "greedy": {"num_beams": 1},
    "beam, penalty 0.6": {"num_beams": 5, "length_penalty": 0.6},
    "beam, penalty 1": {"num_beams": 5, "length_penalty": 1.0},
    "beam, penalty 2": {"num_beams": 5, "length_penalty": 2.0, "early_stopping": True},
    "n-best": {"num_beams": 4, "num_return_sequences": 3, "output_scores": True, "return_dict_in_generate": True},
    "sampling": {"num_beams": 1, "do_sample": True, "temperature": 1.3, "top_k": 20},
    "prefix": {"decoder_input_ids": torch.tensor([[52, 7, 8], [52, 9, 7], [52, 1, 1]]), "num_beams": 3},
}


@pytest.mark.parametrize("decoding", DECODING)
def test_marian_generates_the_same_tokens(pair, decoding):
    outputs = []
    for model in pair:
        torch.manual_seed(4)
        outputs.append(model.generate(**batch(pair[0]), **DECODING[decoding]))
    if decoding == "n-best":
        torch.testing.assert_close(outputs[1].sequences_scores, outputs[0].sequences_scores, atol=1e-5, rtol=0)
        outputs = [output.sequences for output in outputs]
    assert torch.equal(*outputs)
    assert outputs[0].unique().numel() > 8


def test_generation_settings_are_heeded():
    model = marian()
    free = model.generate(**batch(model), num_beams=1, bad_words_ids=None, forced_eos_token_id=None)
    favourite = next(token for token in free[0, 1:].tolist() if token not in (0, 60))
    model.generation_config.update(bad_words_ids=[[60], [favourite]], num_beams=1, max_length=12)
    for converted in (from_marian(model), to_marian(from_marian(model))):
        output = converted.generate(**batch(model))
        assert favourite not in output
        assert output.shape[1] <= 12
        assert all(0 in row for row in output[:, 1:])  # forced at the end where it did not come by itself
        assert converted.generation_config.to_dict() == model.generation_config.to_dict()
        assert converted.generation_config is not model.generation_config


def test_marian_config(pair):
    theirs, ours = (model.config for model in pair)
    same = ["d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim", "activation_function"]
    same += ["pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "dropout", "attention_dropout"]
    for name in [*same, "scale_embedding", "init_std", "max_position_embeddings", "vocab_size"]:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.unk_token_id is None  # Marian does not say
    assert ours.target_vocab_size == theirs.decoder_vocab_size
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.share_encoder_decoder_embeddings == theirs.share_encoder_decoder_embeddings


def test_scratch_to_marian_and_back_is_bit_identical(pair):
    once = to_marian(pair[1])
    assert identical(from_marian(once), pair[1])
    assert identical(once, pair[0])


@pytest.mark.parametrize(
    "fields",
    [
        {"activation_function": "gelu", "scale_embedding": False},
        {"decoder_vocab_size": 40, "share_encoder_decoder_embeddings": False, "encoder_attention_heads": 8},
        {"tie_word_embeddings": False, "decoder_ffn_dim": 24, "init_std": 0.01},
        {"lm_head_bias": False},
    ],
)
@torch.no_grad()
def test_to_marian(fields):
    model = scratch(**fields)
    converted = to_marian(model)
    inputs = {"input_ids": torch.arange(5, 17).view(2, 6), "decoder_input_ids": torch.arange(5, 13).view(2, 4)}
    torch.testing.assert_close(converted(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=0)
    assert converted.config.forced_eos_token_id is None  # MarianConfig's default would force token 0
    again = from_marian(converted)
    if not model.config.lm_head_bias:  # Marian's is always there
        assert not again.lm_head.bias.any()
        again.lm_head.bias = None
    assert identical(again, model)
    for name in ("bos_token_id", "eos_token_id", "unk_token_id", "decoder_start_token_id", "pad_token_id"):
        assert getattr(again.config, name) == getattr(model.config, name)


def test_dtype_and_mode_are_kept(tmp_path):
    model = marian().half()
    converted = from_marian(model)
    assert {weight.dtype for weight in converted.parameters()} == {torch.float16}
    assert not converted.training
    assert identical(to_marian(converted), model)
    converted.save_pretrained(tmp_path)
    reloaded = load_translator(str(tmp_path))
    assert reloaded.dtype == torch.float16
    assert identical(reloaded, converted)
    assert reloaded.generation_config.to_dict() == model.generation_config.to_dict()
    assert from_marian(marian().train()).training
    double = marian().double()
    inputs = batch(double) | {"decoder_input_ids": torch.arange(1, 7).view(3, 2)}
    difference = double(**inputs).logits - from_marian(double)(**inputs).logits
    assert difference.abs().max() < 1e-6  # float64 but for Marian's table, whose sines are of float32


def test_warnings(caplog):
    logger = logging.getLogger("modeling_scratch.convert.marian")
    logger.addHandler(caplog.handler)
    try:
        from_marian(marian(encoder_layerdrop=0.1))
        model = scratch(max_position_embeddings=16)
        model.generation_config.max_new_tokens = 17
        to_marian(model)
    finally:
        logger.removeHandler(caplog.handler)
    assert "encoder_layerdrop is 0.1" in caplog.text
    assert "may produce 17 tokens, but a Marian model fails beyond max_position_embeddings (16)" in caplog.text


def test_to_marian_names_every_field_that_does_not_fit():
    fields = {"norm_position": "pre", "final_norm": True, "norm_type": "rms_norm", "norm_eps": 1e-6, "gated_ffn": True}
    fields |= {"position_embedding_type": "rotary", "attention_bias": False, "ffn_bias": False, "share_layers": True}
    needed = ["'post'", "False", "'layer_norm'", "1e-05", "False", "'sinusoidal'", "True", "True", "False"]
    for changes in ({}, {"position_embedding_type": "alibi", "final_norm": "decoder"}):
        fields |= changes
        with pytest.raises(ValueError, match="Marian has no such model") as error:
            to_marian(scratch(**fields, decoder_start_token_id=None))
        for (name, value), must in zip(fields.items(), needed, strict=True):
            assert f"{name} is {value!r} and must be {must}" in str(error.value)
        assert "decoder_start_token_id is None" in str(error.value)


def test_marian_models_that_are_refused():
    model = marian()
    model.model.decoder.embed_positions.weight.data[3, 4] += 0.1
    with pytest.raises(ValueError, match=r"model.decoder.embed_positions.weight is not the table"):
        from_marian(model)
    with pytest.raises(ValueError, match="takes a MarianMTModel, not a MarianModel"):
        from_marian(marian().model)
    with pytest.raises(ValueError, match="takes a ScratchForConditionalGeneration, not a ScratchModel"):
        to_marian(scratch().model)
    other = marian("shared, not tied")
    other.model.decoder.embed_tokens = nn.Embedding(70, 32)
    with pytest.raises(ValueError, match=r"lm_head.weight has 61 rows and .* has 70"):
        from_marian(other)


@pytest.mark.parametrize("convert", [from_marian, to_marian, to_torch])
def test_adapters_are_refused(convert):
    plain = marian() if convert is from_marian else scratch(norm_position="post", final_norm=False)
    model = peft.get_peft_model(plain, peft.LoraConfig(target_modules=["q_proj"])).base_model.model
    with pytest.raises(ValueError, match=r"not those of a \w+: .*base_layer.* more; merge adapters into it first"):
        convert(model)


# -- torch.nn.Transformer --------------------------------------------------------------------------------------------


class Tutorial(nn.Module):
    """The model of https://docs.pytorch.org/tutorials/beginner/translation_transformer.html."""

    def __init__(self, src_vocab_size=31, tgt_vocab_size=29, emb_size=24, nhead=4, **options):
        super().__init__()
        options = {"num_encoder_layers": 2, "num_decoder_layers": 3, "dim_feedforward": 40, "dropout": 0.2} | options
        self.transformer = nn.Transformer(d_model=emb_size, nhead=nhead, **options)
        self.generator = nn.Linear(emb_size, tgt_vocab_size)
        self.src_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(src_vocab_size, emb_size)})
        self.tgt_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(tgt_vocab_size, emb_size)})
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, 500).reshape(500, 1)
        pos_embedding = torch.zeros((500, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        self.positional_encoding = nn.Module()
        self.positional_encoding.register_buffer("pos_embedding", pos_embedding.unsqueeze(-2))

    def embed(self, embedding, tokens):
        vectors = embedding["embedding"](tokens) * math.sqrt(embedding["embedding"].embedding_dim)
        return vectors + self.positional_encoding.pos_embedding[: tokens.size(0)]

    def forward(self, src, trg, src_padding_mask):
        """src (source_length, batch_size), trg (target_length, batch_size), mask (batch_size, source_length)."""
        out = self.transformer(
            self.embed(self.src_tok_emb, src),
            self.embed(self.tgt_tok_emb, trg),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(len(trg)),
            src_key_padding_mask=src_padding_mask,
            memory_key_padding_mask=src_padding_mask,
        )
        return self.generator(out)


SPECIAL = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "unk_token_id": 0}
NAMES = {
    "source_embedding": "src_tok_emb.embedding",
    "target_embedding": "tgt_tok_emb.embedding.weight",
    "output_projection": "generator",
}
TOLD = {"num_heads": 4, "norm_position": "post", "activation_function": "relu", "scale_embedding": True}


def tutorial(**options) -> Tutorial:
    return randomise(Tutorial(**options))


@torch.no_grad()
def test_tutorial_logits():
    user = tutorial()
    state = {f"module.{name}": weight for name, weight in user.state_dict().items()}  # as DataParallel saves it
    names = {role: f"module.{name}" for role, name in NAMES.items()}
    model = from_torch(state, **names, **TOLD, **SPECIAL)
    assert isinstance(model, ScratchForConditionalGeneration)
    random = torch.Generator().manual_seed(5)
    src, trg = (torch.randint(4, 29, (length, 3), generator=random) for length in (9, 7))
    padding = torch.arange(9) >= torch.tensor([[9], [5], [2]])
    expected = user(src, trg, padding).transpose(0, 1)
    logits = model(input_ids=src.T, attention_mask=~padding, decoder_input_ids=trg.T).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    config = model.config
    shape = (config.vocab_size, config.decoder_vocab_size, config.encoder_layers, config.decoder_layers, config.d_model)
    assert shape == (31, 29, 2, 3, 24)
    assert (config.encoder_ffn_dim, config.lm_head_bias, config.final_norm) == (40, True, True)
    assert (config.decoder_start_token_id, config.pad_token_id, config.unk_token_id) == (2, 1, 0)
    assert model.generation_config.max_length == config.max_position_embeddings


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"norms": False}, {"activation": "gelu", "layer_norm_eps": 1e-3}]
)
@torch.no_grad()
def test_hidden_states_in_float64(norm_first, options):
    options = dict(options)
    norms = options.pop("norms", True)
    transformer = nn.Transformer(24, 3, 2, 3, 40, batch_first=True, norm_first=norm_first, **options)
    if not norms:
        transformer.encoder.norm = transformer.decoder.norm = None
    randomise(transformer.double())
    embeddings = [torch.randn(size, 24, dtype=torch.float64) for size in (31, 29)]
    model = from_torch(
        transformer,
        source_embedding=embeddings[0],
        target_embedding=embeddings[1],
        scale_embedding=False,
        **SPECIAL,
    )
    assert isinstance(model, ScratchModel)
    assert model.dtype == torch.float64
    assert (model.config.encoder_attention_heads, model.config.norm_eps) == (3, options.get("layer_norm_eps", 1e-5))
    ids = [torch.randint(0, 29, (2, length)) for length in (8, 6)]
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    positioned = []
    for table, tokens in zip(embeddings, ids, strict=True):
        angles = torch.arange(8).double()[:, None] / 10000 ** (torch.arange(0, 24, 2).double() / 24)
        sines = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        positioned.append(table[tokens] + sines[: tokens.shape[1]])
    causal = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    hidden = {"src_key_padding_mask": mask == 0, "memory_key_padding_mask": mask == 0}
    expected = transformer(*positioned, tgt_mask=causal, **hidden)
    output = model(input_ids=ids[0], attention_mask=mask, decoder_input_ids=ids[1]).last_hidden_state
    torch.testing.assert_close(output, expected, atol=1e-9, rtol=0)
    back = to_torch(model)
    assert identical(back, transformer)
    torch.testing.assert_close(back(*positioned, tgt_mask=causal, **hidden), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "fields",
    [{}, {"norm_position": "pre", "final_norm": True}, {"tie_word_embeddings": False, "activation_function": "gelu"}],
)
def test_scratch_to_torch_and_back_is_bit_identical(fields):
    model = scratch(**fields, norm_eps=1e-6, dropout=0.3, attention_dropout=0.3, activation_dropout=0.3)
    tokens = {name: getattr(model.config, name) for name in SPECIAL}
    around = {"src": model.model.encoder.embed_tokens.weight, "tgt": model.model.decoder.embed_tokens.weight}
    user = nn.Module()
    user.transformer, user.generator = to_torch(model), model.lm_head
    again = from_torch(
        user,
        source_embedding=around["src"],
        target_embedding=around["tgt"],
        output_projection="generator",
        scale_embedding=True,
        **tokens,
    )
    assert identical(again, model)
    told = ["norm_position", "norm_eps", "dropout", "attention_dropout", "activation_dropout", "activation_function"]
    for name in [*told, "tie_word_embeddings", "share_encoder_decoder_embeddings", "final_norm", "lm_head_bias"]:
        assert getattr(again.config, name) == getattr(model.config, name), name
    assert again.lm_head.weight is not model.lm_head.weight


def change(state: dict, **changes) -> dict:
    """A state dict without the names whose value is None, and with the others'."""
    state = state | {name.replace("/", "."): value for name, value in changes.items()}
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"transformer.encoder.layers.1.norm2.bias": None}, {}, "no encoder.layers.1.norm2.bias"),
        ({"transformer.decoder.norm.weight": None}, {}, "the encoder has a final norm and the decoder has none"),
        ({"transformer.encoder.norm.weight": None}, {}, "the decoder has a final norm and the encoder has none"),
        ({"transformer.extra": torch.ones(2)}, {}, "nothing in a Scratch model corresponds to transformer.extra"),
        ({"positions": torch.ones(9, 24)}, {}, "learned positions are not converted"),
        ({"transformer.decoder.layers.2.linear1.weight": torch.ones(41, 24)}, {}, r"is \(41, 24\) and should be"),
        ({"transformer.encoder.layers.1.linear1.weight": None}, {}, "no encoder.layers.1.linear1.weight"),
        ({"transformer.decoder.layers.0.linear1.weight": None}, {}, "decoder.layers.0.linear1.weight is missing"),
        ({"tgt_tok_emb.embedding.weight": torch.ones(29, 23)}, {}, "d_model is 24"),
        ({"generator.weight": torch.ones(30, 24)}, {}, "bias has the shape"),
        ({"generator.weight": torch.ones(30, 24), "generator.bias": None}, {}, "has 30 rows and the target's .* 29"),
        ({"generator.bias": torch.ones(29).double()}, {}, "several dtypes: torch.float32, torch.float64"),
        ({"epoch": 3}, {}, "not a state dict: epoch is no tensor"),
        ({"other.encoder.layers.0.self_attn.in_proj_weight": torch.ones(72, 24)}, {}, "choose one by prefix"),
        ({}, {"prefix": "model"}, "model.encoder.layers.0.self_attn.in_proj_weight is missing"),
        ({}, {"source_embedding": None}, "source_embedding must be given"),
        ({}, {"target_embedding": "embedding"}, "have no 'embedding' and no 'embedding.weight'"),
        ({}, {"source_embedding": "generator.bias"}, r"has the shape \(29,\)"),
        ({}, {"output_projection": None}, "corresponds to generator.weight, generator.bias"),
        ({}, {"num_heads": None, "activation_function": None}, "num_heads, activation_function must be given"),
        ({}, {"vocab_size": 31}, "vocab_size cannot be given"),
    ],
)
def test_torch_weights_that_are_refused(changes, arguments, message):
    state = change(tutorial().state_dict(), **changes)
    with pytest.raises(ValueError, match=message):
        from_torch(state, **(NAMES | TOLD | SPECIAL | arguments))


def test_torch_arguments_that_contradict():
    user = tutorial()
    with pytest.raises(ValueError, match=r"given as 8, but the torch\.nn\.Transformer has 4"):
        from_torch(user, **NAMES, **(TOLD | {"num_heads": 8}), **SPECIAL)
    with pytest.raises(ValueError, match="must be divisible by encoder_attention_heads"):
        from_torch(user.state_dict(), **NAMES, **(TOLD | {"num_heads": 5}), **SPECIAL)
    with pytest.raises(ValueError, match="a NoneType holds no weights"):
        from_torch(None, **NAMES, **TOLD, **SPECIAL)
    user.transformer.encoder.layers[1].norm1.eps = 1e-3
    with pytest.raises(ValueError, match="layer_norm_eps differs between layers"):
        from_torch(user, **NAMES, **TOLD, **SPECIAL)


def test_to_torch_names_every_field_that_does_not_fit():
    fields = {"norm_type": "rms_norm", "gated_ffn": True, "position_embedding_type": "rotary"}
    fields |= {"activation_function": "silu", "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "ffn_bias": False}
    fields |= {"share_layers": True, "final_norm": "decoder"}
    for positions in ("rotary", "alibi"):
        fields["position_embedding_type"] = positions
        with pytest.raises(ValueError, match=r"torch\.nn\.Transformer has no such model") as error:
            to_torch(scratch(**fields))
        for name, value in fields.items():
            assert f"{name} is {value!r}" in str(error.value)
    with pytest.raises(ValueError, match="the norms' biases must be 0"):
        to_torch(scratch(attention_bias=False, ffn_bias=False))
    with pytest.raises(ValueError, match="takes a ScratchModel or a translator, not a Linear"):
        to_torch(nn.Linear(2, 2))


# -- command lines ---------------------------------------------------------------------------------------------------

PAIRS = make_corpus(300, 10, 10, seed=0)["train"]


def invoke(*arguments, code: int = 0):
    result = CliRunner().invoke(convert.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def refusal(folder, *arguments) -> str:
    """The one line that a command says; nothing new may be left in `folder`."""
    before = sorted(folder.iterdir())
    result = invoke(*arguments, code=2)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(folder.iterdir()) == before
    return lines[0]


@pytest.fixture(scope="module")
def opus_folder(tmp_path_factory):
    """A folder as OPUS-MT's: a Marian model, SentencePiece files, and a tokenizer config that names no class."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("opus")
    pieces = []
    for side, language in (("source", "en"), ("target", "de")):
        sentences = [pair[language] for pair in PAIRS]
        options = {"vocab_size": 150, "model_prefix": str(folder / side), "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), **options)
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        pieces += [line.split("\t")[0] for line in (folder / f"{side}.vocab").read_text().splitlines()[3:]]
        (folder / f"{side}.vocab").unlink()
    vocabulary = {piece: index for index, piece in enumerate(["</s>", "<unk>", *dict.fromkeys(pieces), "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    size = len(vocabulary)
    marian(vocab_size=size, pad_token_id=size - 1, decoder_start_token_id=size - 1).half().save_pretrained(folder)
    return folder


def run_folder(folder, tokenizers: int = 1, **fields):
    """A folder as training writes it, of a model that Marian can express."""
    languages = [("en", "de")] if tokenizers == 1 else [("en",), ("de",)]
    made = [train_tokenizer(iter([[pair[each] for pair in PAIRS for each in group]]), 300) for group in languages]
    sizes = {"vocab_size": len(made[0])}
    if tokenizers == 2:
        sizes |= {"decoder_vocab_size": len(made[1]) + 3, "share_encoder_decoder_embeddings": False}
    model = scratch(**(sizes | fields))
    model.generation_config.update(max_new_tokens=10, no_repeat_ngram_size=1)
    model.save_pretrained(folder)
    save_tokenizers(made[0], made[-1], folder)
    return folder


def translations(folder) -> list[str]:
    return translate(load_translator(str(folder)), *load_tokenizers(str(folder)), ["The cat sleeps.", PAIRS[0]["en"]])


# Lines of source in, translations out, by Transformers alone.
LOADS_ALONE = """
import json, sys
sys.modules["modeling_scratch"] = None  # as on a machine that has nothing of this project
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
outputs = []
for folder, target, trust in json.loads(sys.argv[1]):
    options = {"trust_remote_code": True} if trust else {}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    target = AutoTokenizer.from_pretrained(folder, subfolder=target, **options) if target else tokenizer
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, **options)
    inputs = tokenizer(json.loads(sys.argv[2]), padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    outputs.append([type(model).__name__, target.batch_decode(model.generate(**inputs), skip_special_tokens=True)])
print(json.dumps(outputs))
"""


def test_folders_load_without_this_project(opus_folder, tmp_path):
    loaded, expected = [], []
    for tokenizers in (1, 2):
        source = run_folder(tmp_path / f"scratch-{tokenizers}", tokenizers)
        invoke("to-marian", source, tmp_path / f"marian-{tokenizers}")
        loaded.append((str(tmp_path / f"marian-{tokenizers}"), "target_tokenizer" if tokenizers == 2 else "", False))
        expected.append(["MarianMTModel", translations(source)])
    invoke("marian", opus_folder, tmp_path / "from-opus")
    loaded.append((str(tmp_path / "from-opus"), "", True))
    expected.append(["ScratchForConditionalGeneration", translations(opus_folder)])
    sources = ["The cat sleeps.", PAIRS[0]["en"]]
    result = run_command("-c", LOADS_ALONE, json.dumps(loaded), json.dumps(sources), PYTHONPATH="")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == expected
    assert all(text for _, texts in expected for text in texts)


def test_marian_command(opus_folder, tmp_path):
    out = tmp_path / "out"
    result = invoke("marian", opus_folder, out)
    assert "largest logit difference" in result.stdout
    assert result.stdout.splitlines()[-1] == f"wrote {out}"
    assert sorted(tmp_path.iterdir()) == [out]
    expected = {"config.json", "generation_config.json", "model.safetensors", "modeling_scratch.py", "stacks.py"}
    expected |= {"source.spm", "target.spm", "vocab.json", "tokenizer_config.json"}
    assert expected <= {path.name for path in out.iterdir()}
    theirs, ours = (AutoTokenizer.from_pretrained(folder) for folder in (opus_folder, out))
    assert type(ours) is type(theirs)
    target = PAIRS[1]["de"]
    assert ours("The cat sleeps.", text_target=target).data == theirs("The cat sleeps.", text_target=target).data
    labels = ours(text_target=target).input_ids
    assert ours.decode(labels, skip_special_tokens=True) == theirs.decode(labels, skip_special_tokens=True)
    assert translations(out) == translations(opus_folder)
    assert load_translator(str(out)).dtype == torch.float16
    back = tmp_path / "back"
    invoke("to-marian", out, back)
    assert identical(load_translator(str(back)), load_translator(str(opus_folder)))
    assert translations(back) == translations(opus_folder)


def test_a_model_without_tokenizer(tmp_path):
    marian().save_pretrained(tmp_path / "marian")
    result = invoke("marian", tmp_path / "marian", tmp_path / "out")
    assert "has no tokenizer" in result.stderr
    assert not (tmp_path / "out" / "tokenizer_config.json").exists()


def test_torch_commands(tmp_path):
    user = tutorial()
    torch.save(user.state_dict(), tmp_path / "user.pt")
    tokens = [f"--{name.replace('_', '-')}={value}" for name, value in SPECIAL.items()]
    told = ["--num-heads=4", "--norm-position=post", "--activation-function=relu", "--scale-embedding"]
    result = invoke("torch", tmp_path / "user.pt", tmp_path / "model", *told, *tokens, "--dropout=0.2")
    assert "largest logit difference" in result.stdout
    model = load_translator(str(tmp_path / "model"))
    assert identical(model, from_torch(user, **NAMES, scale_embedding=True, **SPECIAL))
    assert model.config.attention_dropout == 0.2
    result = invoke("to-torch", tmp_path / "model", tmp_path / "back.pt")
    assert "torch.nn.Transformer(24, 4, 2, 3, 40, activation='relu', layer_norm_eps=1e-05, norm_first=False" in (
        result.stdout
    )
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    state = user.state_dict()
    del state["positional_encoding.pos_embedding"]
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_bad_commands(tmp_path, monkeypatch):
    good, prepared = tmp_path / "marian", tmp_path / "scratch"
    marian().save_pretrained(good)
    scratch(norm_position="pre").save_pretrained(prepared)
    scratch(position_embedding_type="learned", max_position_embeddings=20).save_pretrained(tmp_path / "learned")
    torch.save(tutorial(), tmp_path / "pickled.pt")
    torch.save({"model": tutorial().state_dict(), "epoch": 3}, tmp_path / "checkpoint.pt")
    torch.save([1], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("no weights")
    out = tmp_path / "out"
    told = ["--num-heads=4", "--norm-position=post", "--activation-function=relu", "--no-scale-embedding"]
    told += ["--pad-token-id=1", "--bos-token-id=2", "--eos-token-id=3"]
    for arguments, message in (
        (["marian", good, prepared], "exists; choose another name"),
        (["marian", good, tmp_path / "no" / "out"], "there is no folder"),
        (["marian", tmp_path / "nowhere", out], "nowhere"),
        (["marian", prepared, out], "is a scratch model; this command reads a marian model"),
        (["to-marian", good, out], "is a marian model; this command reads a scratch model"),
        (["to-marian", prepared, out], "norm_position is 'pre' and must be 'post'"),
        (["to-torch", tmp_path / "learned", out], "must be 'sinusoidal'"),
        (["to-torch", prepared, tmp_path / "list.pt"], "exists; choose another name"),
        (["torch", tmp_path / "none.pt", out, *told], "no such file"),
        (["torch", tmp_path / "pickled.pt", out, *told], "not a state dict written by torch.save"),
        (["torch", tmp_path / "text.pt", out, *told], "not a state dict written by torch.save"),
        (["torch", tmp_path / "list.pt", out, *told], "holds a list"),
        (["torch", tmp_path / "checkpoint.pt", out, *told], "not a state dict: model, epoch"),
        (["torch", tmp_path / "checkpoint.pt", out, *told, "--output-projection=x"], "not a state dict"),
    ):
        assert message in refusal(tmp_path, *arguments)
    for value in (1e-2, math.nan):  # a conversion that went wrong is found out, and its folder goes

        def wrong(model, value=value):
            converted = from_marian(copy.deepcopy(model))
            converted.lm_head.bias.data[5] += value
            return converted

        monkeypatch.setattr(convert, "from_marian", wrong)
        assert "the conversion went wrong" in refusal(tmp_path, "marian", good, out)
    monkeypatch.undo()
    weights = good / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refusal(tmp_path, "marian", good, out)
    assert "Traceback" in invoke("marian", tmp_path / "nowhere", out, "--debug", code=2).stderr


def test_python_m_lists_the_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["convert", "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("modeling_scratch.convert", run_name="__main__")
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("marian", "to-marian", "torch", "to-torch", "ctranslate2"))
