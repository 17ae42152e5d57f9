"""
The Transformer of "Attention Is All You Need" (https://arxiv.org/abs/1706.03762) in one file of plain PyTorch. It loads
a model that `scratch train` has trained, and gives the same logits:

    python docs/learn/minimal.py runs/embedded "The old man gives the child a book."

It differs from the paper in two ways: norms come before each part of a layer and after the last layer, and search is
greedy. Sizes in comments: B sentences in a batch, S source tokens, T target tokens, D the width of the model (d_model).
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn


class Attention(nn.Module):
    """
    Multi-head attention (section 3.2): what should each position of `x` read in `memory`? In self-attention, `memory`
    is `x`; in the decoder's attention to the source, it is the encoder's output.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, memory, mask):
        """(B, T, D), (B, S, D), and a mask that is true where `x` may look, of a shape like (B, heads, T, S)."""

        def split(states):  # (B, length, D) to (B, heads, length, D / heads)
            return states.view(*states.shape[:2], self.heads, -1).transpose(1, 2)

        query, key, value = split(self.q_proj(x)), split(self.k_proj(memory)), split(self.v_proj(memory))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])  # equation 1
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.o_proj((weights @ value).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, for each position alone (section 3.3, equation 2)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down_proj(self.up_proj(x).relu())


class Layer(nn.Module):
    """
    A layer of the encoder or of the decoder, which also attends to the source (section 3.1). Each part reads the
    normalized states and adds its result to the states. (The paper normalizes the sum, which is harder to train.)
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, is_decoder: bool):
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = Attention(width, heads), nn.LayerNorm(width)
        if is_decoder:
            self.cross_attn, self.cross_attn_layer_norm = Attention(width, heads), nn.LayerNorm(width)
        self.feed_forward, self.feed_forward_layer_norm = FeedForward(width, hidden), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        y = self.self_attn_layer_norm(x)
        x = x + self.dropout(self.self_attn(y, y, mask))
        if memory is not None:
            y = self.cross_attn_layer_norm(x)
            x = x + self.dropout(self.cross_attn(y, memory, memory_mask))
        return x + self.dropout(self.feed_forward(self.feed_forward_layer_norm(x)))


def positions(length: int, width: int) -> torch.Tensor:
    """Sines and cosines of growing wavelengths (section 3.5), (length, D), in float64."""
    frequencies = 1 / 10_000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Stack(nn.Module):
    """The encoder or the decoder: embeddings, positions, layers, and a last norm."""

    def __init__(self, config: dict, side: str):
        super().__init__()
        width = config["d_model"]
        sizes = width, config[f"{side}_attention_heads"], config[f"{side}_ffn_dim"], config["dropout"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], width)
        self.layers = nn.ModuleList(Layer(*sizes, side == "decoder") for _ in range(config[f"{side}_layers"]))
        self.layer_norm, self.dropout = nn.LayerNorm(width), nn.Dropout(config["dropout"])

    def forward(self, ids, mask, memory=None, memory_mask=None):  # (B, length) to (B, length, D)
        x = self.embed_tokens(ids) * math.sqrt(self.embed_tokens.embedding_dim)  # section 3.4
        x = self.dropout(x + positions(*x.shape[1:]).to(x))  # in the type of x, and on its device
        for layer in self.layers:
            x = layer(x, mask, memory, memory_mask)
        return self.layer_norm(x)


class Transformer(nn.Module):
    """
    Encoder and decoder. One matrix embeds the source and the target and scores the next token (section 3.4).

    Args:
        config: the content of a model's config.json.
    """

    def __init__(self, config: dict):
        super().__init__()
        self.start, self.end, self.pad = (config[f"{name}_token_id"] for name in ("decoder_start", "eos", "pad"))
        self.encoder, self.decoder = Stack(config, "encoder"), Stack(config, "decoder")
        self.decoder.embed_tokens = self.encoder.embed_tokens
        for name, weight in self.named_parameters():
            if "embed" in name:
                nn.init.normal_(weight, std=config["d_model"] ** -0.5)  # 1 after the scaling in Stack
            elif weight.ndim == 2:
                nn.init.xavier_uniform_(weight)

    def encode(self, source):  # token ids (B, S); shorter sentences end with padding, at which nobody looks
        mask = (source != self.pad)[:, None, None, :]
        return self.encoder(source, mask), mask

    def decode(self, target, memory, memory_mask):  # (B, T) to (B, T, vocabulary)
        length = target.shape[1]
        # Padding follows the target, so this mask hides it too.
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()  # nobody looks ahead
        return self.decoder(target, causal, memory, memory_mask) @ self.encoder.embed_tokens.weight.T

    def forward(self, source, target):
        """Logits for the token after each of `target`, which begins with the start token: (B, T, vocabulary)."""
        return self.decode(target, *self.encode(source))

    def loss(self, source, labels, smoothing=0.1):
        """
        The mean cross-entropy of `labels`, which end with the end token and then padding: (B, T). The decoder reads the
        same tokens one place later: the start token, then all labels but the last.
        """
        target = torch.cat((torch.full_like(labels[:, :1], self.start), labels[:, :-1]), dim=1)
        logits = self(source, target).transpose(1, 2)  # (B, vocabulary, T)
        return nn.functional.cross_entropy(logits, labels, ignore_index=self.pad, label_smoothing=smoothing)

    @torch.no_grad()
    def translate(self, source, longest=64):
        """Greedy search: the most probable token, then the most probable one after it, and so on. Returns (B, T)."""
        memory, memory_mask = self.encode(source)
        target = torch.full_like(source[:, :1], self.start)
        is_done = torch.zeros_like(target, dtype=torch.bool)
        while not is_done.all() and target.shape[1] <= longest:
            best = self.decode(target, memory, memory_mask)[:, -1:].argmax(dim=-1)
            target = torch.cat((target, best.masked_fill(is_done, self.pad)), dim=1)
            is_done = is_done | (best == self.end)
        return target[:, 1:]


def load(folder: str) -> Transformer:
    """A trained model, from a run's folder, whose file has the shared matrix once and begins names with `model.`."""
    model = Transformer(json.loads((Path(folder) / "config.json").read_text()))
    weights = {name.removeprefix("model."): weight for name, weight in load_file(f"{folder}/model.safetensors").items()}
    model.load_state_dict(weights | {"decoder.embed_tokens.weight": weights["encoder.embed_tokens.weight"]})
    return model.eval()


if __name__ == "__main__":
    folder, text = sys.argv[1:]
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    source = torch.tensor([tokenizer.encode(text).ids])  # the tokenizer adds the end token
    print(tokenizer.decode(load(folder).translate(source)[0].tolist()))  # and leaves it out again
