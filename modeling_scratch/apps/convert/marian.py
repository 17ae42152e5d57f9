"""
Conversion from and to Marian's translators (Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344), such as
those of OPUS-MT, as Transformers' MarianMTModel.

Both are the paper's post-norm Transformer. They differ in names and in the layout of sinusoidal positions: a Scratch
model alternates sines and cosines (section 3.5), while Marian has all sines in the first half of d_model and all
cosines in the second. Nothing else in the model depends on the order of the residual stream's dimensions, so permuting
every weight that reads or writes the stream turns one model into the other.
"""

import copy
import logging
from collections.abc import Collection, Mapping

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedModel

from ...errors import UserError
from ...model import ScratchForConditionalGeneration
from ...model.configuration_scratch import ScratchConfig
from ...model.position_embeddings import SinusoidalPositionEmbedding

logger = logging.getLogger(__name__)

# Fields that mean the same in both configs.
COMMON_FIELDS = (
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "activation_function",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "scale_embedding",
    "max_position_embeddings",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "use_cache",
)

# The architecture of every Marian model.
MARIAN_ARCHITECTURE = {
    "norm_position": "post",
    "final_norm": False,
    "norm_type": "layer_norm",
    "norm_eps": 1e-5,
    "gated_ffn": False,
    "position_embedding_type": "sinusoidal",
    "share_layers": False,
    "attention_bias": True,
    "ffn_bias": True,
}

_MARIAN_PARTS = {
    "o_proj": "out_proj",
    "cross_attn": "encoder_attn",
    "cross_attn_layer_norm": "encoder_attn_layer_norm",
    "up_proj": "fc1",
    "down_proj": "fc2",
    "feed_forward_layer_norm": "final_layer_norm",
}
_READ_THE_STREAM = ("embed_tokens", "q_proj", "k_proj", "v_proj", "up_proj", "lm_head")


def _marian_name(name: str) -> str:
    """Marian's name for a parameter of ScratchForConditionalGeneration."""
    if name == "lm_head.bias":
        return "final_logits_bias"
    return ".".join(_MARIAN_PARTS.get(part, part) for part in name.split(".") if part != "feed_forward")


def _marian_dimensions(d_model: int) -> torch.Tensor:
    """(d_model,): element i is the dimension of Marian's residual stream that is dimension i of a Scratch model's."""
    dimensions, sines = torch.empty(d_model, dtype=torch.long), (d_model + 1) // 2
    dimensions[0::2] = torch.arange(sines)
    dimensions[1::2] = torch.arange(sines, d_model)
    return dimensions


def _permute(name: str, weight: torch.Tensor, dimensions: torch.Tensor) -> torch.Tensor:
    """Permute a parameter, given by its Scratch name: dimension i of the new stream is `dimensions[i]` of the old."""
    module, kind = name.split(".")[-2:]
    if module not in _READ_THE_STREAM:
        return weight[dimensions]  # o_proj, down_proj and norms write: the rows of a matrix, a bias, a norm's scale
    return weight[:, dimensions] if kind == "weight" else weight


def check_plain_weights(model: PreTrainedModel) -> None:
    """Raise UserError if a model has other weights than its class, such as adapters."""
    with torch.device("meta"):
        plain = type(model)(copy.deepcopy(model.config))
    if other := sorted(model.state_dict().keys() ^ plain.state_dict().keys()):
        raise UserError(
            f"the model's weights are not those of a {type(model).__name__}: {other[0]}"
            f"{f' and {len(other) - 1} more' if len(other) > 1 else ''}; merge adapters into it first "
            "(PEFT: merge_and_unload), and load quantized models unquantized"
        )


def misfits(config: ScratchConfig, needed: Mapping[str, Collection]) -> list[str]:
    """Describe each field of a config whose value is not one of those needed."""
    return [
        f"{name} is {getattr(config, name)!r} and must be {' or '.join(map(repr, values))}"
        for name, values in needed.items()
        if getattr(config, name) not in values
    ]


def _check_positions(marian_model: MarianMTModel, dimensions: torch.Tensor) -> None:
    """Raise UserError if the positions of the encoder or decoder are not sinusoidal."""
    for side in ("encoder", "decoder"):
        table = getattr(marian_model.model, side).embed_positions.weight.detach().cpu()
        expected = SinusoidalPositionEmbedding.encode(torch.arange(len(table)), table.shape[1])
        rounding = torch.finfo(table.dtype).eps + 1e-5
        if not torch.allclose(table[:, dimensions].double(), expected, rtol=0, atol=rounding):
            raise UserError(
                f"model.{side}.embed_positions.weight is not the table of sinusoidal positions; other positions are "
                "not converted"
            )


@torch.no_grad()
def widen(marian_model: MarianMTModel) -> MarianMTModel:
    """Convert the model to float32, and recompute its table of positions, which half precision rounds to 3 digits."""
    marian_model.float()
    for stack in (marian_model.model.encoder, marian_model.model.decoder):
        stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    return marian_model


def from_marian(marian_model: MarianMTModel) -> ScratchForConditionalGeneration:
    """
    Convert a Marian model to a Scratch model with the same weights, dtype, device, dropouts and generation config. It
    gives the same logits and generates the same tokens.

    The models agree if padding is on the right, where tokenizers put it: Marian's positions count padding, a Scratch
    model's do not. Which embeddings are shared is inferred from the weights. Marian's max_position_embeddings is a hard
    limit, but a Scratch model takes longer sequences. LayerDrop, which affects only training, is left out.

    Raises:
        UserError: the model's positions are not sinusoidal, or its output projection does not fit its decoder's
            embedding.
    """
    check_plain_weights(marian_model)
    marian_config, weights = marian_model.config, marian_model.state_dict()
    dimensions = _marian_dimensions(marian_config.d_model)
    _check_positions(marian_model, dimensions)
    source, target = (weights[f"model.{side}.embed_tokens.weight"] for side in ("encoder", "decoder"))
    head = weights["lm_head.weight"]
    if len(head) != len(target):
        raise UserError(
            f"lm_head.weight has {len(head)} rows and model.decoder.embed_tokens.weight has {len(target)}; they must "
            "share a vocabulary"
        )
    shared = torch.equal(source, target)
    config = ScratchConfig(
        vocab_size=len(source),
        decoder_vocab_size=None if shared else len(target),
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=torch.equal(head, target),
        lm_head_bias=True,
        init_std=float(marian_config.init_std),
        unk_token_id=getattr(marian_config, "unk_token_id", None),
        **{name: getattr(marian_config, name) for name in COMMON_FIELDS},
        **MARIAN_ARCHITECTURE,
    )
    model = ScratchForConditionalGeneration(config).to(device=marian_model.device, dtype=marian_model.dtype)
    weights["final_logits_bias"] = weights["final_logits_bias"][0]
    dimensions = dimensions.to(marian_model.device)
    model.load_state_dict(
        {name: _permute(name, weights[_marian_name(name)], dimensions) for name in model.state_dict()}
    )
    model.generation_config = copy.deepcopy(marian_model.generation_config)
    return model.train(marian_model.training)


def to_marian(model: ScratchForConditionalGeneration) -> MarianMTModel:
    """
    Convert a Scratch model to a Marian model with the same weights, dtype, device, dropouts and generation config. It
    gives the same logits and generates the same tokens if padding is on the right.

    The Marian model has a table of max_position_embeddings positions and fails on longer sequences. An output
    projection without a bias gets a bias of zeros. Marian ties all embeddings or none: with
    share_encoder_decoder_embeddings True and tie_word_embeddings False it has two copies of the embedding, which would
    diverge in further training.

    Raises:
        UserError: Marian cannot express the model; the message names each field, its value and the value needed.
    """
    check_plain_weights(model)
    config, generation = model.config, copy.deepcopy(model.generation_config)
    wrong = misfits(config, {name: [value] for name, value in MARIAN_ARCHITECTURE.items()})
    if config.decoder_start_token_id is None:
        wrong.append("decoder_start_token_id is None and must be a token id")
    if wrong:
        raise UserError(f"Marian cannot express this model: {'; '.join(wrong)}")
    limit = max(generation.max_length or 0, generation.max_new_tokens or 0)
    if limit > config.max_position_embeddings:
        logger.warning(
            f"generation may produce {limit} tokens, but a Marian model fails beyond max_position_embeddings "
            f"({config.max_position_embeddings})"
        )
    marian_config = MarianConfig(
        vocab_size=config.vocab_size,
        decoder_vocab_size=config.target_vocab_size,
        share_encoder_decoder_embeddings=config.share_encoder_decoder_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        forced_eos_token_id=generation.forced_eos_token_id,
        **{name: value for name in ("init_std", "unk_token_id") if (value := getattr(config, name)) is not None},
        **{name: getattr(config, name) for name in COMMON_FIELDS},
    )
    marian_model = MarianMTModel(marian_config).to(device=model.device, dtype=model.dtype)
    stream = torch.argsort(_marian_dimensions(config.d_model)).to(model.device)
    weights = {_marian_name(name): _permute(name, weight, stream) for name, weight in model.state_dict().items()}
    bias = weights.get("final_logits_bias")
    weights["final_logits_bias"] = torch.zeros_like(marian_model.final_logits_bias) if bias is None else bias[None]
    for name in marian_model.state_dict():
        if name == "model.shared.weight":
            weights[name] = weights["model.encoder.embed_tokens.weight"]
        elif name.endswith("embed_positions.weight"):
            weights[name] = marian_model.get_parameter(name)
    marian_model.load_state_dict(weights)
    marian_model.generation_config = generation
    return marian_model.train(model.training)
