"""Weights of a model of this project in the format of Marian in C++, so that Marian can start its training there."""

from pathlib import Path

import numpy as np
import yaml

from modeling_scratch.apps.convert import to_marian
from modeling_scratch.errors import UserError
from modeling_scratch.model.modeling_scratch import ScratchForConditionalGeneration

ATTENTIONS = {"self_attn": "self", "encoder_attn": "context"}


def write_marian(model: ScratchForConditionalGeneration, order: list[int], path: Path) -> None:
    """
    Write a `.npz` file, with the names of Marian 1.12. Marian starts each output from an embedding of zeros instead of
    that of a token, so it must train somewhat longer; otherwise it computes the same.

    Args:
        model: one that `to_marian` can express, with a shared vocabulary and tied embeddings.
        order: the token ids in the order of Marian's vocabulary.

    Raises:
        UserError: Marian cannot express the model.
    """
    theirs = {name: weight.detach().float().numpy() for name, weight in to_marian(model).state_dict().items()}
    weights = {"Wemb": theirs["model.shared.weight"][order]}
    weights["decoder_ff_logit_out_b"] = theirs["final_logits_bias"][:, order]

    def linear(to: str, of: str) -> None:
        weights[to.format("W")], weights[to.format("b")] = theirs[f"{of}.weight"].T, theirs[f"{of}.bias"][None]

    def norm(to: str, of: str) -> None:
        weights[f"{to}_ln_scale"], weights[f"{to}_ln_bias"] = theirs[f"{of}.weight"][None], theirs[f"{of}.bias"][None]

    config = model.config
    for stack, depth in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in range(depth):
            here, there = f"model.{stack}.layers.{layer}", f"{stack}_l{layer + 1}"
            for name, short in ATTENTIONS.items():
                if f"{here}.{name}.q_proj.weight" in theirs:
                    for letter, projection in zip("qkvo", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True):
                        linear(f"{there}_{short}_{{}}{letter}", f"{here}.{name}.{projection}")
                    norm(f"{there}_{short}_Wo", f"{here}.{name}_layer_norm")
            for number in (1, 2):
                linear(f"{there}_ffn_{{}}{number}", f"{here}.fc{number}")
            norm(f"{there}_ffn_ffn", f"{here}.final_layer_norm")
    described = yaml.safe_dump(options(model) | {"version": "of modeling_scratch", "dim-vocabs": [len(order)] * 2})
    weights["special:model.yml"] = np.frombuffer(f"{described}\0".encode(), dtype=np.int8)
    np.savez(path, **{name: np.ascontiguousarray(weight) for name, weight in weights.items()})


def options(model: ScratchForConditionalGeneration) -> dict:
    """
    Marian's options for the architecture.

    Raises:
        UserError: encoder and decoder differ in what Marian has one option for.
    """
    config = model.config
    for name in ("attention_heads", "ffn_dim"):
        if getattr(config, f"encoder_{name}") != getattr(config, f"decoder_{name}"):
            raise UserError(f"Marian in C++ cannot express this model: encoder_{name} and decoder_{name} differ")
    return {
        "type": "transformer",
        "tied-embeddings-all": True,
        "dim-emb": config.d_model,
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "transformer-heads": config.encoder_attention_heads,
        "transformer-dim-ffn": config.encoder_ffn_dim,
        "transformer-ffn-activation": {"silu": "swish"}.get(config.activation_function, config.activation_function),
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-no-projection": False,
        "transformer-guided-alignment-layer": "last",
    }
