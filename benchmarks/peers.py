"""The contenders of the benchmarks: this project and its peers (MarianMT, BART, nn.Transformer) in the same shapes."""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class Shape:
    """The shape of a post-norm model with one vocabulary, like MarianMT's."""

    d_model: int
    layers: int
    heads: int
    ffn_dim: int
    vocab_size: int


SHAPES = {
    "tiny": Shape(128, 4, 4, 512, 10_000),
    "small": Shape(256, 3, 4, 1024, 8_000),
    "base": Shape(512, 6, 8, 2048, 32_000),
    "big": Shape(1024, 6, 16, 4096, 32_000),
}
DROPOUT = 0.1
PAD, EOS = 0, 2
# Tokens per sentence of Multi30k's training split, English and German, under a BPE vocabulary of 10,000: their
# logarithms are normal, with these means, standard deviations and correlation.
LOG_LENGTHS = ((2.665, 0.291), (2.680, 0.324), 0.857)
MULTI30K_PAIRS = 29_000


def _sizes(shape: Shape) -> dict[str, int]:
    """The sizes under the names that the configs of all three Transformers models use."""
    sides = {"layers": shape.layers, "attention_heads": shape.heads, "ffn_dim": shape.ffn_dim}
    both = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    return {"vocab_size": shape.vocab_size, "d_model": shape.d_model, **both}


def ours(shape: Shape) -> nn.Module:
    from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration

    config = ScratchConfig(**_sizes(shape), norm_position="post", final_norm=False, dropout=DROPOUT)
    return ScratchForConditionalGeneration(config)


def _fields(shape: Shape) -> dict:
    return {
        **_sizes(shape),
        "activation_function": "relu",
        "dropout": DROPOUT,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "scale_embedding": True,
        "max_position_embeddings": 512,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "decoder_start_token_id": PAD,
        "forced_eos_token_id": None,
    }


def marian(shape: Shape) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(MarianConfig(**_fields(shape)))


def bart(shape: Shape) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(BartConfig(**_fields(shape), bos_token_id=1))


class TorchTranslator(nn.Module):
    """torch.nn.Transformer with embeddings, positions and an output layer, as in PyTorch's own translation tutorial."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.transformer = nn.Transformer(
            shape.d_model, shape.heads, shape.layers, shape.layers, shape.ffn_dim, DROPOUT, batch_first=True
        )
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        self.head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=shape.d_model**-0.5)
        self.dropout = nn.Dropout(DROPOUT)
        angles = torch.arange(512)[:, None] * torch.exp(
            torch.arange(0, shape.d_model, 2) * -math.log(1e4) / shape.d_model
        )
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        shifted = labels.new_full(labels.shape, PAD)
        shifted[:, 1:] = labels[:, :-1].clamp(min=0)
        hidden = attention_mask == 0
        states = self.transformer(
            self.embed(input_ids),
            self.embed(shifted),
            tgt_mask=self.transformer.generate_square_subsequent_mask(labels.shape[1], device=labels.device),
            src_key_padding_mask=hidden.float().masked_fill(hidden, -math.inf),
            memory_key_padding_mask=hidden.float().masked_fill(hidden, -math.inf),
            tgt_is_causal=True,
        )
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.head(states).flatten(0, 1), labels.flatten()))


MAKERS: dict[str, Callable[[Shape], nn.Module]] = {
    "modeling_scratch": ours,
    "MarianMT": marian,
    "BART": bart,
    "nn.Transformer": TorchTranslator,
}


def equal_pair(shape: Shape) -> tuple[nn.Module, nn.Module]:
    """This project's model and MarianMT's with the same weights."""
    from modeling_scratch.apps.convert.marian import from_marian

    torch.manual_seed(0)
    theirs = marian(shape)
    return from_marian(theirs), theirs


def for_training(name: str, shape: Shape) -> nn.Module:
    """A new model of this name, prepared for training."""
    model = MAKERS[name](shape).train()
    if name == "modeling_scratch":
        from modeling_scratch.training.fast_layers import use_fast_layers

        use_fast_layers(model)
    return model


def loss_of(name: str, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss per target token, computed as each model's documentation shows."""
    if name != "modeling_scratch":
        return model(**batch).loss
    from modeling_scratch.training.fused_loss import fused_cross_entropy

    return model(**batch, fused_loss=fused_cross_entropy).loss


def make_lengths(pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random lengths of sources and targets, end tokens included."""
    (mean, deviation), (other_mean, other_deviation), correlation = LOG_LENGTHS
    covariance = correlation * deviation * other_deviation
    drawn = np.random.default_rng(seed).multivariate_normal(
        [mean, other_mean], [[deviation**2, covariance], [covariance, other_deviation**2]], pairs
    )
    lengths = np.clip(np.exp(drawn).round(), 3, 60).astype(np.int64)
    return lengths[:, 0], lengths[:, 1]


def make_batches(
    shape: Shape, count: int, tokens: int = 4096, seed: int = 0, device: str = "cpu", fixed: bool = False
) -> list[dict[str, torch.Tensor]]:
    """
    Batches of pairs of random tokens.

    Args:
        tokens: with pairs of similar length, at most this many on a side, padding included.
        fixed: as in Transformers' documentation: pairs in random order, each batch padded to its longest, with a fixed
            number of pairs, as many as batches of similar length have on average.
    """
    from modeling_scratch.data.batches import plan_batches

    lengths = make_lengths(MULTI30K_PAIRS, seed)
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    if fixed:
        size = len(lengths[1]) // len(plan_batches(*lengths, tokens, generator))
        plan = generator.permutation(len(lengths[1]))[: count * size].reshape(count, size)
    else:
        plan = plan_batches(*lengths, tokens, generator)[:count]
    batches = []
    for rows in plan:
        sides = []
        for length in lengths:
            ids = torch.randint(4, shape.vocab_size, (len(rows), int(length[rows].max())))
            absent = torch.arange(ids.shape[1]) >= torch.from_numpy(length[rows])[:, None]
            ids.scatter_(1, torch.from_numpy(length[rows] - 1)[:, None], EOS)
            sides.append((ids, absent))
        (source, no_source), (target, no_target) = sides
        batch = {
            "input_ids": source.masked_fill(no_source, PAD),
            "attention_mask": (~no_source).long(),
            "labels": target.masked_fill(no_target, -100),
        }
        batches.append({name: tensor.to(device) for name, tensor in batch.items()})
    return batches


def target_tokens(batch: dict[str, torch.Tensor]) -> int:
    return int((batch["labels"] != -100).sum())


def padding(batches: list[dict[str, torch.Tensor]]) -> float:
    """The share of positions, on both sides, that hold no token."""
    real = sum(int(batch["attention_mask"].sum()) + target_tokens(batch) for batch in batches)
    return 1 - real / sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)


def matrix_operations(shape: Shape, batch: dict[str, torch.Tensor]) -> float:
    """
    Floating-point operations of the matrix products in a textbook implementation's forward and backward pass (3 times
    the forward pass's), for tokens and padding alike.
    """
    rows, source = batch["input_ids"].shape
    target = batch["labels"].shape[1]
    attention, feed_forward = 4 * shape.d_model**2, 2 * shape.d_model * shape.ffn_dim
    encoder = shape.layers * source * (attention + feed_forward + 2 * source * shape.d_model)
    self_attention = target * (attention + 2 * target * shape.d_model)
    cross_attention = target * attention / 2 + source * attention / 2 + 2 * source * target * shape.d_model
    decoder = shape.layers * (self_attention + cross_attention + target * feed_forward)
    return 3 * 2 * rows * (encoder + decoder + target * shape.d_model * shape.vocab_size)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def matrix_peak(dtype: torch.dtype = torch.float32, device: str = "cpu") -> float:
    """Operations a second of the fastest of a few large matrix products."""
    size, best = (2048 if device == "cpu" else 8192), 0.0
    first, second = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    for _ in range(6):
        began = time.perf_counter()
        first @ second
        synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def resident() -> float:
    """Peak resident mebibytes of this process (a child would inherit its parent's from getrusage)."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def idle_memory() -> float:
    """Mebibytes of this process with the libraries loaded and used once, before it holds a model."""
    ids = torch.randint(4, 100, (2, 5))
    pairs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    loss_of("nn.Transformer", TorchTranslator(Shape(32, 1, 2, 32, 100)), pairs).backward()
    return resident()


def quotients(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The quotients round by round."""
    return [first / second for first, second in zip(above, below, strict=True)]


def spread(values: Sequence[float]) -> str:
    """The median, lowest and highest value, formatted for a table."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def write_json(found: object, path: str | None) -> None:
    """Write the figures, if a file was asked for."""
    if path:
        Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")


def describe_machine() -> str:
    """The processor, threads, versions and date behind the figures."""
    import transformers

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    device = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return (
        f"{device}{names[0] if names else 'unknown processor'}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}, transformers {transformers.__version__}, {time.strftime('%Y-%m-%d')}"
    )
