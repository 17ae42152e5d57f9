"""
Load the state dict of a Transformer that was built by following a well-known tutorial: its names become those of this
project, and the config says what the tutorial computes. docs/learn/tutorials.md has a section on each.

    python docs/learn/from_tutorial.py annotated weights.pt mine --heads 8 --pad 2 --start 0 --end 1

The folder `mine` then loads with AutoModelForSeq2SeqLM. Add a row to TUTORIALS for a model of your own.
"""

import argparse
import re
from pathlib import Path

import torch

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration

ALL = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "lm_head_bias": True}
PRE_NORM = ALL | {"norm_position": "pre", "final_norm": True}
POST_NORM = ALL | {"norm_position": "post", "final_norm": False}

# For each tutorial, the fields of the config that its weights do not tell, and what to replace in the names of its
# weights, in order.
TUTORIALS = {
    "annotated": (
        PRE_NORM,
        [
            (r"^src_embed\.0\.lut", "encoder.embed_tokens"),
            (r"^tgt_embed\.0\.lut", "decoder.embed_tokens"),
            (r"^generator\.proj", "lm_head"),
            (r"src_attn", "cross_attn"),
            (r"linears\.0", "q_proj"),
            (r"linears\.1", "k_proj"),
            (r"linears\.2", "v_proj"),
            (r"linears\.3", "o_proj"),
            (r"feed_forward\.w_1", "feed_forward.up_proj"),
            (r"feed_forward\.w_2", "feed_forward.down_proj"),
            (r"sublayer\.0\.norm", "self_attn_layer_norm"),
            (r"(^decoder.*)sublayer\.1\.norm", r"\1cross_attn_layer_norm"),
            (r"sublayer\.[12]\.norm", "feed_forward_layer_norm"),
            (r"^(encoder|decoder)\.norm", r"\1.layer_norm"),
            (r"a_2$", "weight"),
            (r"b_2$", "bias"),
        ],
    ),
    "pytorch-transformer": (
        PRE_NORM,
        [
            (r"^src_embed\.embedding", "encoder.embed_tokens"),
            (r"^tgt_embed\.embedding", "decoder.embed_tokens"),
            (r"^projection_layer\.proj", "lm_head"),
            (r"self_attention_block", "self_attn"),
            (r"(source|cross)_attention_block", "cross_attn"),
            (r"\.w_([qkvo])\.", r".\1_proj."),
            (r"feed_forward_block\.linear_1", "feed_forward.up_proj"),
            (r"feed_forward_block\.linear_2", "feed_forward.down_proj"),
            (r"residual_connections\.0\.norm", "self_attn_layer_norm"),
            (r"(^decoder.*)residual_connections\.1\.norm", r"\1cross_attn_layer_norm"),
            (r"residual_connections\.[12]\.norm", "feed_forward_layer_norm"),
            (r"^(encoder|decoder)\.norm", r"\1.layer_norm"),
            (r"norm\.alpha$", "norm.weight"),
        ],
    ),
    "pytorch-seq2seq": (
        POST_NORM | {"position_embedding_type": "learned"},
        [
            (r"tok_embedding", "embed_tokens"),
            (r"pos_embedding", "embed_positions"),
            (r"^decoder\.fc_out", "lm_head"),
            (r"self_attention", "self_attn"),
            (r"encoder_attention", "cross_attn"),
            (r"enc_attn_layer_norm", "cross_attn_layer_norm"),
            (r"ff_layer_norm", "feed_forward_layer_norm"),
            (r"fc_([qkvo])\.", r"\1_proj."),
            (r"positionwise_feedforward\.fc_1", "feed_forward.up_proj"),
            (r"positionwise_feedforward\.fc_2", "feed_forward.down_proj"),
        ],
    ),
    "d2l": (
        POST_NORM,
        [
            (r"\.embedding\.", ".embed_tokens."),
            (r"^decoder\.dense\.", "lm_head."),
            (r"blks\.block(\d+)", r"layers.\1"),
            (r"attention1?\.W_([qkvo])", r"self_attn.\1_proj"),
            (r"attention2\.W_([qkvo])", r"cross_attn.\1_proj"),
            (r"addnorm1\.ln", "self_attn_layer_norm"),
            (r"(^decoder.*)addnorm2\.ln", r"\1cross_attn_layer_norm"),
            (r"addnorm[23]\.ln", "feed_forward_layer_norm"),
            (r"ffn\.dense1", "feed_forward.up_proj"),
            (r"ffn\.dense2", "feed_forward.down_proj"),
        ],
    ),
}
# Those that write the norm themselves: with the standard deviation of a sample, x.std(), which divides by d_model - 1
# where nn.LayerNorm divides by d_model; some with one weight for all dimensions. Many readers put nn.LayerNorm there.
SAMPLE_NORM = {"annotated", "pytorch-transformer"}
COMPUTED = re.compile(r"(^|\.)(pe|P)$")  # tables of sines and cosines, which the model computes


def load(tutorial: str, state: dict[str, torch.Tensor], heads: int, **tokens: int) -> ScratchForConditionalGeneration:
    """
    The model with these weights.

    Args:
        tutorial: a key of TUTORIALS.
        state: a state dict, or a checkpoint that has one as `model_state_dict`.
        heads: attention heads, which weights do not tell.
        tokens: pad_token_id, decoder_start_token_id and eos_token_id, in the vocabularies of the tutorial.

    Raises:
        ValueError: the weights are not those of this tutorial's model.
    """
    fields, replacements = TUTORIALS[tutorial]
    weights, state = {}, state.get("model_state_dict", state)
    for name, weight in state.items():
        if not COMPUTED.search(name):
            for pattern, replacement in replacements:
                name = re.sub(pattern, replacement, name)
            weights[name if name.startswith("lm_head") else f"model.{name}"] = weight
    if "model.encoder.embed_tokens.weight" not in weights or "lm_head.weight" not in weights:
        raise ValueError(f"these names are not those of {tutorial}: {', '.join(list(state)[:3])}, ...")
    vocabulary, d_model = weights["model.encoder.embed_tokens.weight"].shape
    if tutorial in SAMPLE_NORM and not any(name.endswith("norm.weight") for name in state):
        fields = fields | {"norm_eps": 1e-12}
        for name in [name for name in weights if "layer_norm" in name]:
            factor = ((d_model - 1) / d_model) ** 0.5 if name.endswith("weight") else 1.0
            weights[name] = weights[name].expand(d_model) * factor
    layers = {side: 1 + max(layer_numbers(weights, side)) for side in ("encoder", "decoder")}
    ffn_dim = len(weights["model.encoder.layers.0.feed_forward.up_proj.weight"])
    config = ScratchConfig(
        **fields,
        **tokens,
        bos_token_id=tokens["decoder_start_token_id"],
        vocab_size=vocabulary,
        decoder_vocab_size=len(weights["model.decoder.embed_tokens.weight"]),
        d_model=d_model,
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn_dim,
        decoder_ffn_dim=ffn_dim,
        attention_bias="model.encoder.layers.0.self_attn.q_proj.bias" in weights,
        max_position_embeddings=len(weights.get("model.encoder.embed_positions.weight", range(1024))),
    )
    model = ScratchForConditionalGeneration(config).to(weights["lm_head.weight"].dtype)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights are not those of {tutorial}: {error}") from None
    return model.eval()


def layer_numbers(weights: dict[str, torch.Tensor], side: str) -> list[int]:
    return [int(match[1]) for name in weights if (match := re.match(rf"model\.{side}\.layers\.(\d+)\.", name))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Load a tutorial's state dict; save a model of this project.")
    parser.add_argument("tutorial", choices=TUTORIALS)
    parser.add_argument("weights", type=Path, help="a file written by torch.save(model.state_dict(), ...)")
    parser.add_argument("folder", type=Path, help="the folder to write")
    parser.add_argument("--heads", type=int, required=True, help="attention heads")
    for name in ("pad", "start", "end"):
        parser.add_argument(f"--{name}", type=int, required=True, help=f"id of the {name} token")
    given = parser.parse_args()
    state = torch.load(given.weights, map_location="cpu", weights_only=True)
    tokens = {"pad_token_id": given.pad, "decoder_start_token_id": given.start, "eos_token_id": given.end}
    try:
        load(given.tutorial, state, given.heads, **tokens).save_pretrained(given.folder)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
