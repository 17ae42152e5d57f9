"""docs/learn/from_tutorial.py loads weights of tutorials; the model then computes what the tutorial computes."""

import importlib.util
import math
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, padded
from transformers import AutoModelForSeq2SeqLM

SCRIPT = ROOT / "docs" / "learn" / "from_tutorial.py"
spec = importlib.util.spec_from_file_location("from_tutorial", SCRIPT)
spec.loader.exec_module(from_tutorial := importlib.util.module_from_spec(spec))

HEADS, WIDTH, HIDDEN, SOURCE_SIZE, TARGET_SIZE, LONGEST = 4, 24, 40, 37, 31, 12
TOKENS = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}
SOURCE, MASK = padded([torch.randint(4, SOURCE_SIZE, (length,)) for length in (9, 4, 6)], 9)
TARGET = torch.randint(4, TARGET_SIZE, (3, 7))


class Annotated:
    """https://github.com/harvardnlp/annotated-transformer: names of its weights, and what it computes."""

    is_pre_norm, is_scaled, has_attention_bias, has_learned_positions = True, True, True, False
    norm_weights = ("a_2", (WIDTH,)), ("b_2", (WIDTH,))
    encoder_embedding, decoder_embedding, output = "src_embed.0.lut", "tgt_embed.0.lut", "generator.proj"
    encoder_norm, decoder_norm = "encoder.norm", "decoder.norm"

    def __init__(self):
        self.weights = {}

    def attention_names(self, layer, is_cross):
        return [f"{layer}.{'src' if is_cross else 'self'}_attn.linears.{index}" for index in range(4)]

    def layer_name(self, side, index):
        return f"{side}.layers.{index}"

    def ffn_names(self, layer):
        return f"{layer}.feed_forward.w_1", f"{layer}.feed_forward.w_2"

    def norm_name(self, layer, index, is_last):
        return f"{layer}.sublayer.{index}.norm"

    def weight(self, name, *shape):
        """A weight of the tutorial's model, which is random when first asked for."""
        if name not in self.weights:
            self.weights[name] = torch.randn(*shape, dtype=torch.float64) * (0.3 if len(shape) == 2 else 0.5)
            if shape == (1,) or (len(shape) == 1 and "bias" not in name and "b_2" not in name):
                self.weights[name] += 1
        return self.weights[name]

    def linear(self, name, x, size, bias=True):
        product = x @ self.weight(f"{name}.weight", size, x.shape[-1]).T
        return product + self.weight(f"{name}.bias", size) if bias else product

    def norm(self, name, x):
        """As the tutorial writes it: the standard deviation of a sample, to which epsilon is added."""
        scale, shift = (self.weight(f"{name}.{part}", *shape) for part, shape in self.norm_weights)
        return scale * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + shift

    def attend(self, names, x, memory, mask):
        query, *key_and_value = names[:3]
        heads = [self.linear(query, x, WIDTH, self.has_attention_bias)]
        heads += [self.linear(name, memory, WIDTH, self.has_attention_bias) for name in key_and_value]
        q, k, v = (states.unflatten(-1, (HEADS, -1)).transpose(1, 2) for states in heads)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH / HEADS)).masked_fill(mask == 0, -1e9)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.linear(names[3], mixed, WIDTH, self.has_attention_bias)

    def stack(self, side, ids, size, mask, memory=None, memory_mask=None):
        x = self.weight(f"{getattr(self, f'{side}_embedding')}.weight", size, WIDTH)[ids]
        x = x * math.sqrt(WIDTH) if self.is_scaled else x
        if self.has_learned_positions:
            x = x + self.weight(f"{side}.pos_embedding.weight", LONGEST, WIDTH)[: ids.shape[1]]
        else:
            angles = torch.arange(ids.shape[1]).double()[:, None] / 10_000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
            table = torch.zeros(ids.shape[1], WIDTH, dtype=torch.float64)
            table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
            x = x + table
        for index in range(2):
            layer = self.layer_name(side, index)
            parts = [lambda y, layer=layer: self.attend(self.attention_names(layer, False), y, y, mask)]
            if memory is not None:
                parts.append(
                    lambda y, layer=layer: self.attend(self.attention_names(layer, True), y, memory, memory_mask)
                )
            first, second = self.ffn_names(layer)
            parts.append(
                lambda y, first=first, second=second: self.linear(
                    second, self.linear(first, y, HIDDEN).clamp(min=0), WIDTH
                )
            )
            for number, part in enumerate(parts):
                name = self.norm_name(layer, number, part is parts[-1])
                x = x + part(self.norm(name, x)) if self.is_pre_norm else self.norm(name, x + part(x))
        return self.norm(getattr(self, f"{side}_norm"), x) if self.is_pre_norm else x

    def logits(self, source, mask, target):
        sees = mask[:, None, None, :]
        memory = self.stack("encoder", source, SOURCE_SIZE, sees)
        causal = torch.ones(target.shape[1], target.shape[1]).tril()
        return self.linear(self.output, self.stack("decoder", target, TARGET_SIZE, causal, memory, sees), TARGET_SIZE)


class Own(Annotated):
    """A reader's own: pre-norm as the Annotated Transformer, but with nn.LayerNorm."""

    def norm(self, name, x):
        weight, bias = self.weight(f"{name}.weight", WIDTH), self.weight(f"{name}.bias", WIDTH)
        return torch.nn.functional.layer_norm(x, (WIDTH,), weight, bias)


class PytorchTransformer(Annotated):
    """https://github.com/hkproj/pytorch-transformer, until 2023: norms have one weight and one bias."""

    norm_weights = ("alpha", (1,)), ("bias", (1,))
    encoder_embedding, decoder_embedding, output = "src_embed.embedding", "tgt_embed.embedding", "projection_layer.proj"
    cross = "source_attention_block"

    def attention_names(self, layer, is_cross):
        block = self.cross if is_cross else "self_attention_block"
        return [f"{layer}.{block}.w_{kind}" for kind in "qkvo"]

    def ffn_names(self, layer):
        return f"{layer}.feed_forward_block.linear_1", f"{layer}.feed_forward_block.linear_2"

    def norm_name(self, layer, index, is_last):
        return f"{layer}.residual_connections.{index}.norm"


class PytorchTransformerOfToday(PytorchTransformer):
    """Its later versions: norms have a weight for each dimension, and attention has no biases."""

    has_attention_bias = False
    norm_weights = ("alpha", (WIDTH,)), ("bias", (WIDTH,))
    cross = "cross_attention_block"


class PytorchSeq2seq(Annotated):
    """https://github.com/bentrevett/pytorch-seq2seq, notebook 6: post-norm, learned positions."""

    is_pre_norm, has_learned_positions = False, True
    encoder_embedding, decoder_embedding, output = "encoder.tok_embedding", "decoder.tok_embedding", "decoder.fc_out"

    def norm(self, name, x):
        shape = (WIDTH,)
        weight, bias = self.weight(f"{name}.weight", WIDTH), self.weight(f"{name}.bias", WIDTH)
        return torch.nn.functional.layer_norm(x, shape, weight, bias)

    def attention_names(self, layer, is_cross):
        return [f"{layer}.{'encoder' if is_cross else 'self'}_attention.fc_{kind}" for kind in "qkvo"]

    def ffn_names(self, layer):
        return f"{layer}.positionwise_feedforward.fc_1", f"{layer}.positionwise_feedforward.fc_2"

    def norm_name(self, layer, index, is_last):
        part = "ff" if is_last else ("self_attn", "enc_attn")[index]
        return f"{layer}.{part}_layer_norm"


class D2L(PytorchSeq2seq):
    """https://d2l.ai, section 11.7: post-norm, no biases in attention."""

    has_attention_bias, has_learned_positions = False, False
    encoder_embedding, decoder_embedding, output = "encoder.embedding", "decoder.embedding", "decoder.dense"

    def layer_name(self, side, index):
        return f"{side}.blks.block{index}"

    def attention_names(self, layer, is_cross):
        number = "" if layer.startswith("encoder") else 2 if is_cross else 1
        return [f"{layer}.attention{number}.W_{kind}" for kind in "qkvo"]

    def ffn_names(self, layer):
        return f"{layer}.ffn.dense1", f"{layer}.ffn.dense2"

    def norm_name(self, layer, index, is_last):
        return f"{layer}.addnorm{index + 1}.ln"


@pytest.mark.parametrize(
    ("name", "tutorial"),
    [
        ("annotated", Annotated),
        ("pytorch-transformer", PytorchTransformer),
        ("pytorch-transformer", PytorchTransformerOfToday),
        ("pytorch-seq2seq", PytorchSeq2seq),
        ("d2l", D2L),
    ],
)
@torch.no_grad()
def test_the_model_computes_what_the_tutorial_computes(name, tutorial):
    original = tutorial()
    expected = original.logits(SOURCE, MASK, TARGET)
    model = from_tutorial.load(name, original.weights, HEADS, **TOKENS)
    found = model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["own", "annotated"])
@torch.no_grad()
def test_layer_norms_are_not_taken_for_a_tutorial_s_own(name, monkeypatch):
    """Which divide by the standard deviation of a sample. In a row of one's own, and in a tutorial that was changed."""
    _, replacements = from_tutorial.TUTORIALS["annotated"]
    monkeypatch.setitem(from_tutorial.TUTORIALS, "own", (from_tutorial.PRE_NORM, replacements))
    original = Own()
    expected = original.logits(SOURCE, MASK, TARGET)
    model = from_tutorial.load(name, original.weights, HEADS, **TOKENS)
    found = model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_weights_of_another_tutorial_are_refused():
    original = Annotated()
    original.logits(SOURCE, MASK, TARGET)
    with pytest.raises(ValueError, match="these names are not those of d2l: "):
        from_tutorial.load("d2l", original.weights, HEADS, **TOKENS)


def test_a_weight_without_a_counterpart_is_refused():
    original = Annotated()
    original.logits(SOURCE, MASK, TARGET)
    with pytest.raises(ValueError, match=r"not those of annotated: (.|\n)*encoder\.gate"):
        from_tutorial.load("annotated", original.weights | {"encoder.gate": torch.zeros(1)}, HEADS, **TOKENS)


@torch.no_grad()
def test_the_command_writes_a_folder_that_transformers_loads(tmp_path):
    original = PytorchTransformer()
    expected = original.logits(SOURCE, MASK, TARGET)
    table = torch.zeros(1, 50, WIDTH)
    torch.save({"model_state_dict": original.weights | {"src_pos.pe": table}, "epoch": 3}, tmp_path / "weights.pt")
    command = [sys.executable, SCRIPT, "pytorch-transformer", tmp_path / "weights.pt", tmp_path / "mine", "--heads"]
    subprocess.run([*command, "4", "--pad", "0", "--start", "1", "--end", "2"], check=True, cwd=ROOT)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mine", dtype=torch.float64)
    found = model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert model.generate(SOURCE, attention_mask=MASK, max_new_tokens=5).shape[0] == 3
