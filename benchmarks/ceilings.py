"""
Counts, without a GPU, what one update of a model asks of one: products, bytes moved, kernels, and waits for the device,
eager and compiled. Derives what share of the matrix units' peak the update can reach at most, however fast the host.
Everything is computed on fake tensors, which have shapes but no memory.

    python benchmarks/ceilings.py                      # base and big, 3,125 and 25,000 target tokens a GPU
    python benchmarks/ceilings.py --shapes big --tokens 25000
"""

import argparse
from contextlib import contextmanager
from unittest import mock

import torch
from kernel_counting import GPUS, OF_BANDWIDTH, OF_PEAK, Counter, Work, attend, counting_backend
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.model import attention, masking
from modeling_scratch.recipe import CONFIGURATION_FOLDER
from modeling_scratch.recipe.reading import read_yaml
from modeling_scratch.training import fast_layers
from modeling_scratch.training import fused_loss as loss
from modeling_scratch.training.compilation import compile_layers

VOCABULARY, LENGTH = 37_000, 32  # tokens of the vocabulary; of each source and target


@contextmanager
def as_on_a_gpu():
    """Make the model do with fake tensors, which are on the CPU, what it does on a GPU."""

    def whole_attention(self, query, key, value, attention_mask, dropout, is_causal):
        return attend(query, key, value, attention_mask)

    def in_float32(self, states):
        return nn.functional.layer_norm(states.float(), self.normalized_shape, self.weight, self.bias, self.eps)

    with (
        mock.patch.object(masking, "can_look_at", return_value=False),
        mock.patch.object(loss, "can_look_at", return_value=False),
        mock.patch.object(loss, "CHUNK_ROWS", loss.LOGITS_OF_GPU // VOCABULARY),
        mock.patch.object(nn.LayerNorm, "forward", in_float32),  # a GPU's autocast, unlike the CPU's
        mock.patch.object(attention.ScratchAttention, "sdpa", whole_attention),
        mock.patch.object(fast_layers, "FAST", {nn.LayerNorm: fast_layers.FastLayerNorm}),  # the others are for the CPU
        mock.patch.object(fast_layers.FastDropout, "forward", nn.Dropout.forward),
    ):
        yield


def config_of(shape: str) -> ScratchConfig:
    return ScratchConfig(**read_yaml(CONFIGURATION_FOLDER / "models" / f"{shape}.yaml"), vocab_size=VOCABULARY)


def count(shape: str, tokens: int, compiled: bool) -> Work:
    """The work of an update in bf16, with this many target and as many source tokens, in sentences of LENGTH tokens."""
    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True), as_on_a_gpu():
        model = ScratchForConditionalGeneration(config_of(shape)).train()
        fast_layers.use_fast_layers(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # creates its states
        optimizer.zero_grad()
        ids = torch.ones(-(-tokens // LENGTH), LENGTH, dtype=torch.long)
        positions, counter = torch.arange(LENGTH)[None], Counter()
        options = {"num_items_in_batch": tokens, "fused_loss": loss.TrainingLoss(label_smoothing=0.1)}
        if compiled:
            compile_layers(model, backend=counting_backend(counter), dynamic=False)
            for stack in (model.model.encoder, model.model.decoder):
                for layer in stack.layers:
                    layer._compiled_call_impl = counter.outside(layer._compiled_call_impl)
        with counter:
            with torch.autocast("cpu", torch.bfloat16):
                found = model(input_ids=ids, attention_mask=ids, position_ids=positions, labels=ids, **options).loss
            found[0].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return counter.work


def multiplied_weights(config: ScratchConfig) -> int:
    """Elements of the matrices that a source token and a target token are multiplied by, output projection included."""
    width, of_feed_forward = config.d_model, 3 if config.gated_ffn else 2
    weights = config.encoder_layers * (4 * width**2 + of_feed_forward * width * config.encoder_ffn_dim)
    weights += config.decoder_layers * (8 * width**2 + of_feed_forward * width * config.decoder_ffn_dim)
    return weights + width * config.target_vocab_size


def useful_operations(shape: str, tokens: int) -> float:
    """Operations of the model's own products: forward, and twice that backward; recomputation is not counted."""
    config = config_of(shape)
    attentions = config.encoder_layers + 2 * config.decoder_layers
    return 3 * tokens * (2 * multiplied_weights(config) + attentions * 4 * LENGTH * config.d_model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["base", "big"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[3125, 25_000])
    options = parser.parse_args()
    print(
        f"Computed, not measured: bf16, sentences of {LENGTH} tokens, a vocabulary of {VOCABULARY:,}; products reach "
        f"{OF_PEAK:.0%} of the peak and memory {OF_BANDWIDTH:.0%} of its bandwidth; nothing overlaps; compiled, what "
        "is neither a product nor attention is fused.\n"
    )
    print("| shape | tokens | | operations | GB moved | kernels | waits | " + " | ".join(GPUS) + " |")
    print("|---|---|---|---|---|---|---|" + "---|" * len(GPUS))
    for shape in options.shapes:
        for tokens in options.tokens:
            useful = useful_operations(shape, tokens)
            for compiled in (False, True):
                work = count(shape, tokens, compiled)
                ceilings = [useful / (work.seconds[name] * peak) for name, (peak, _) in GPUS.items()]
                print(
                    f"| {shape} | {tokens:,} | {'compiled' if compiled else 'eager'} | {work.operations:.2e} | "
                    f"{work.transferred / 1e9:.1f} | {work.kernels:,} | {work.waits} | "
                    + " | ".join(f"{ceiling:.0%}" for ceiling in ceilings)
                    + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
