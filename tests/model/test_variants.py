"""
Every shipped model and every choice of the config equals a Transformer written here from the formulas, in outputs and
in the gradient of every parameter; torch-post and torch-pre equal torch.nn.Transformer.
"""

import math

import pytest
import torch
import yaml
from conftest import ROOT
from torch import nn

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration, ScratchModel

MODELS = sorted(path.stem for path in (ROOT / "configuration" / "models").glob("*.yaml"))
# Small sizes that differ between encoder and decoder; they replace those of a file.
SMALL = {"vocab_size": 23, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 20}
SMALL |= {"decoder_ffn_dim": 28, "encoder_attention_heads": 4, "decoder_attention_heads": 3}
OTHER_CHOICES = {
    "learned": {"position_embedding_type": "learned", "max_position_embeddings": 9, "norm_position": "post"},
    "gated gelu, no final norm": {"gated_ffn": True, "activation_function": "gelu", "final_norm": False},
    "rms and post, rotary": {"norm_type": "rms_norm", "norm_position": "post", "position_embedding_type": "rotary"},
    "no biases": {"attention_bias": False, "ffn_bias": False, "lm_head_bias": True, "activation_function": "silu"},
    "shared, untied": {"tie_word_embeddings": False, "scale_embedding": False, "norm_eps": 1e-2},
    "separate, tied": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19, "d_model": 12},
    "rotary, other base": {
        "position_embedding_type": "rotary",
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    "rotary, stretched": {
        "position_embedding_type": "rotary",
        "rope_parameters": {"rope_type": "linear", "factor": 4.0},
    },
    "alibi": {"position_embedding_type": "alibi"},
    "shared layers, decoder's norm": {"share_layers": True, "final_norm": "decoder"},
    "shared layers, post, alibi": {
        "share_layers": True,
        "norm_position": "post",
        "position_embedding_type": "alibi",
        "attention_dropout": 0.2,
    },
}


def model_file(name: str) -> dict:
    return yaml.safe_load((ROOT / "configuration" / "models" / f"{name}.yaml").read_text())


def drop(states: torch.Tensor, probability: float) -> torch.Tensor:
    """Deterministic dropout: it only depends on shape and probability, so it is the same here and in the model."""
    draws = torch.arange(1, states.numel() + 1, dtype=torch.float64).mul(0.6180339887498949).frac().view(states.shape)
    return states * (draws >= probability) / (1 - probability)


def slopes(heads: int) -> list[float]:
    """Section 3 of the ALiBi paper: 1/2, 1/4, ..., 1/256 for 8 heads; other numbers as in its code."""
    below = 2 ** math.floor(math.log2(heads))
    series = [(2 ** (-8 / below)) ** (head + 1) for head in range(below)]
    return series if below == heads else series + slopes(2 * below)[::2][: heads - below]


class Reference:
    """The Transformer of the paper with the choices of the config; weights are named as in a checkpoint."""

    defaults = {
        "norm_position": "pre",
        "norm_type": "layer_norm",
        "norm_eps": 1e-5,
        "final_norm": True,
        "activation_function": "relu",
        "gated_ffn": False,
        "position_embedding_type": "sinusoidal",
        "share_layers": False,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "rope_parameters": {"rope_theta": 10000.0},
    }

    def __init__(self, fields: dict, weights: dict[str, torch.Tensor]):
        self.config, self.weights = {**self.defaults, **fields}, weights

    def linear(self, name, x):
        bias = self.weights.get(f"{name}.bias")
        product = torch.einsum("bti,oi->bto", x, self.weights[f"{name}.weight"])
        return product if bias is None else product + bias

    def norm(self, name, x):
        if self.config["norm_type"] == "rms_norm":
            return (
                x / ((x * x).mean(-1, keepdim=True) + self.config["norm_eps"]).sqrt() * self.weights[f"{name}.weight"]
            )
        centred = x - x.mean(-1, keepdim=True)
        scale = ((centred * centred).mean(-1, keepdim=True) + self.config["norm_eps"]).sqrt()
        return centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def activation(self, x):
        name = self.config["activation_function"]
        if name == "relu":
            return x.clamp(min=0)
        return x / (1 + (-x).exp()) if name == "silu" else x * (1 + (x / math.sqrt(2)).erf()) / 2

    def rotate(self, x):
        """Section 3.2 of the RoPE paper, dimension i paired with i + size / 2, positions 0, 1, ..."""
        length, half = x.shape[1], x.shape[2] // 2
        theta = self.config["rope_parameters"].get("rope_theta", 10000.0)
        factor = self.config["rope_parameters"].get("factor", 1.0)
        rotated = torch.empty_like(x)
        for i in range(half):
            # frequencies are float32, as in other implementations
            exponent = torch.tensor(2 * i, dtype=torch.float32) / (2 * half)
            angles = torch.arange(length, dtype=torch.float64) * (1.0 / (theta**exponent)).double() / factor
            first, second = x[:, :, i], x[:, :, i + half]
            rotated[:, :, i] = first * angles.cos() - second * angles.sin()
            rotated[:, :, i + half] = first * angles.sin() + second * angles.cos()
        return rotated

    def attention(self, name, x, memory, heads, allowed, positions):
        """allowed: (batch, query_length, key_length), True attends. positions: the kind that enters here, or None."""
        query, key, value = self.linear(f"{name}.q_proj", x), *(
            self.linear(f"{name}.{part}_proj", memory) for part in "kv"
        )  # fmt: skip
        size = x.shape[-1] // heads
        weights, values = [], []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            q, k = query[..., part], key[..., part]
            if positions == "rotary":
                q, k = self.rotate(q), self.rotate(k)
            scores = q @ k.transpose(1, 2) / math.sqrt(size)
            if positions == "alibi":
                places = torch.arange(x.shape[1])
                scores = scores - slopes(heads)[head] * (places[:, None] - places).abs()
            exponents = scores.exp() * allowed
            weights.append(exponents / exponents.sum(-1, keepdim=True))
            values.append(value[..., part])
        weights = torch.stack(weights, dim=1)  # (batch, heads, query_length, key_length)
        if self.config["attention_dropout"]:
            weights = drop(weights, self.config["attention_dropout"])
        joined = torch.cat([weights[:, head] @ values[head] for head in range(heads)], dim=-1)
        return self.linear(f"{name}.o_proj", joined)

    def feed_forward(self, name, x):
        up = self.linear(f"{name}.up_proj", x)
        if self.config["gated_ffn"]:
            inner = self.activation(self.linear(f"{name}.gate_proj", x)) * up
        else:
            inner = self.activation(up)
        if self.config["activation_dropout"]:
            inner = drop(inner, self.config["activation_dropout"])
        return self.linear(f"{name}.down_proj", inner)

    def sublayer(self, x, norm, function):
        if self.config["norm_position"] == "pre":
            return x + drop(function(self.norm(norm, x)), self.config["dropout"])
        return self.norm(norm, x + drop(function(x), self.config["dropout"]))

    def embed(self, stack, ids):
        shared = self.config["share_encoder_decoder_embeddings"]
        table = self.weights[f"model.{'encoder' if shared else stack}.embed_tokens.weight"]
        width = table.shape[1]
        x = table[ids] * (math.sqrt(width) if self.config["scale_embedding"] else 1)
        kind, length = self.config["position_embedding_type"], ids.shape[1]
        if kind == "learned":
            x = x + self.weights[f"model.{stack}.embed_positions.weight"][:length]
        elif kind == "sinusoidal":
            encode = lambda p, i: (math.cos if i % 2 else math.sin)(p / 10000 ** ((i - i % 2) / width))  # noqa: E731
            x = x + torch.tensor([[encode(p, i) for i in range(width)] for p in range(length)], dtype=torch.float64)
        return drop(x, self.config["dropout"])

    def stack(self, name, x, allowed, memory=None, memory_allowed=None):
        heads, positions = self.config[f"{name}_attention_heads"], self.config["position_embedding_type"]
        for index in range(self.config[f"{name}_layers"]):
            layer = f"model.{name}.layers.{0 if self.config['share_layers'] else index}"
            x = self.sublayer(
                x,
                f"{layer}.self_attn_layer_norm",
                lambda y: self.attention(f"{layer}.self_attn", y, y, heads, allowed, positions),  # noqa: B023
            )
            if memory is not None:
                x = self.sublayer(
                    x,
                    f"{layer}.cross_attn_layer_norm",
                    lambda y: self.attention(f"{layer}.cross_attn", y, memory, heads, memory_allowed, None),  # noqa: B023
                )
            x = self.sublayer(
                x,
                f"{layer}.feed_forward_layer_norm",
                lambda y: self.feed_forward(f"{layer}.feed_forward", y),  # noqa: B023
            )
        ends_with_norm = self.config["final_norm"] in (True, name)
        return self.norm(f"model.{name}.layer_norm", x) if ends_with_norm else x

    def logits(self, source, source_mask, target):
        causal = torch.ones(target.shape[1], target.shape[1]).tril()[None]
        memory = self.stack("encoder", self.embed("encoder", source), source_mask[:, None, :])
        states = self.stack("decoder", self.embed("decoder", target), causal, memory, source_mask[:, None, :])
        head = "lm_head.weight"
        if self.config["tie_word_embeddings"]:
            shared = self.config["share_encoder_decoder_embeddings"]
            head = f"model.{'encoder' if shared else 'decoder'}.embed_tokens.weight"
        return states @ self.weights[head].T + self.weights.get("lm_head.bias", 0)


CASES = {name: model_file(name) | SMALL for name in MODELS} | {
    name: SMALL | fields for name, fields in OTHER_CHOICES.items()
}


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_every_model_and_choice_equals_the_formulas(fields, training, monkeypatch):
    torch.manual_seed(0)
    config = ScratchConfig(**fields)
    config._attn_implementation = "eager" if training else "sdpa"
    model = ScratchForConditionalGeneration(config).double().train(training)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.05, std=0.3)  # so that every bias and norm matters
    if training:
        monkeypatch.setattr(nn.Dropout, "forward", lambda self, states: drop(states, self.p) if self.p else states)
        monkeypatch.setattr(nn.functional, "dropout", lambda x, p: drop(x, p) if p else x)
    else:
        fields = fields | {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}

    source, target = torch.randint(4, 19, (2, 6)), torch.randint(4, 19, (2, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    weight = torch.randn(2, 5, config.target_vocab_size, dtype=torch.float64)
    output = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    (output * weight).sum().backward()

    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    expected = Reference(fields, weights).logits(source, mask, target)
    (expected * weight).sum().backward()
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-9, atol=1e-9, msg=name)
    assert {"lm_head.weight", "model.decoder.embed_tokens.weight"}.isdisjoint(weights) == (
        config.tie_word_embeddings and config.share_encoder_decoder_embeddings
    )


# -- torch.nn.Transformer ----------------------------------------------------------------------------------------------


def copy_into(theirs: nn.Module, ours: nn.Module, convert) -> None:
    """Set torch.nn.Transformer's packed parameters to convert(parameter) of ours."""
    for own, layer in zip(ours.layers, theirs.layers, strict=True):
        attentions = [(own.self_attn, layer.self_attn)]
        norms = [own.self_attn_layer_norm, own.feed_forward_layer_norm]
        if hasattr(own, "cross_attn"):
            attentions.append((own.cross_attn, layer.multihead_attn))
            norms.insert(1, own.cross_attn_layer_norm)
        for mine, packed in attentions:
            for kind in ("weight", "bias"):
                parts = [convert(getattr(getattr(mine, f"{part}_proj"), kind)) for part in "qkv"]
                getattr(packed, f"in_proj_{kind}").data = torch.cat(parts)
                getattr(packed.out_proj, kind).data = convert(getattr(mine.o_proj, kind))
        pairs = [(own.feed_forward.up_proj, layer.linear1), (own.feed_forward.down_proj, layer.linear2)]
        pairs += [(norm, getattr(layer, f"norm{index}")) for index, norm in enumerate(norms, start=1)]
        for mine, other in pairs:
            other.weight.data, other.bias.data = convert(mine.weight), convert(mine.bias)
    theirs.norm.weight.data, theirs.norm.bias.data = convert(ours.layer_norm.weight), convert(ours.layer_norm.bias)


def causal_and_padding(has_padding: bool) -> dict[str, torch.Tensor]:
    """Masks by their names in torch.nn.Transformer, where True hides."""
    masks = {"tgt_mask": torch.ones(5, 5).triu(1).bool()}
    if has_padding:
        source_padding = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]).bool()
        masks |= {"src_key_padding_mask": source_padding, "memory_key_padding_mask": source_padding}
        masks |= {"tgt_key_padding_mask": torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]).bool()}
    return masks


def embedded(stack: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The input of a stack's first layer."""
    return stack.embed_positions.add(stack.embed(ids, None), torch.arange(ids.shape[1])[None]).detach()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")  # from torch, about a faster path
@pytest.mark.parametrize("has_padding", [False, True])
@pytest.mark.parametrize("name", ["torch-post", "torch-pre"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_equals_torch_nn_transformer(name, has_padding, implementation):
    """In hidden states and gradients."""
    torch.manual_seed(0)
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 23, "decoder_vocab_size": 19}
    config = ScratchConfig(**(model_file(name) | sizes))
    config._attn_implementation = implementation
    ours = ScratchModel(config).double().eval()
    for parameter in ours.parameters():
        nn.init.normal_(parameter, mean=0.05, std=0.3)
    theirs = nn.Transformer(24, 4, 2, 2, 20, norm_first=name == "torch-pre", batch_first=True).double().eval()
    for stack in ("encoder", "decoder"):
        copy_into(getattr(theirs, stack), getattr(ours, stack), lambda parameter: parameter.detach().clone())
    source, target = torch.randint(4, 19, (2, 6)), torch.randint(4, 19, (2, 5))
    masks = causal_and_padding(has_padding)
    ours_masks = {name: ~mask for name, mask in masks.items()}
    # torch.nn.Transformer counts positions of padding, so positions are passed here.
    memory = ours.encoder(
        source, ours_masks.get("src_key_padding_mask"), position_ids=torch.arange(6)[None]
    ).last_hidden_state
    decoded = ours.decoder(
        target,
        ours_masks.get("tgt_key_padding_mask"),  # the decoder makes it causal
        memory,
        ours_masks.get("memory_key_padding_mask"),
        position_ids=torch.arange(5)[None],
    ).last_hidden_state
    expected_memory = theirs.encoder(
        embedded(ours.encoder, source), src_key_padding_mask=masks.get("src_key_padding_mask")
    )
    decoder_masks = {key: mask for key, mask in masks.items() if not key.startswith("src")}
    expected = theirs.decoder(embedded(ours.decoder, target), expected_memory, **decoder_masks)
    torch.testing.assert_close(memory, expected_memory, rtol=0, atol=1e-9)
    torch.testing.assert_close(decoded, expected, rtol=0, atol=1e-9)

    weight = torch.randn(2, 5, 24, dtype=torch.float64)
    (decoded * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = nn.Transformer(24, 4, 2, 2, 20, batch_first=True).double()
    for stack in ("encoder", "decoder"):
        copy_into(getattr(gradients, stack), getattr(ours, stack), lambda parameter: parameter.grad.clone())
    for (path, gradient), parameter in zip(gradients.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(gradient.data, parameter.grad, rtol=1e-9, atol=1e-9, msg=path)
