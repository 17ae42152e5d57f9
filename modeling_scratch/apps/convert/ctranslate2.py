"""Conversion to CTranslate2 (https://opennmt.net/CTranslate2), a C++ runtime for translation with 8-bit weights."""

import json
import logging
import shutil
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from ctranslate2.specs import attention_spec, common_spec, transformer_spec
from torch import nn
from transformers import PreTrainedTokenizerBase

from ...errors import UserError
from ...inference.ctranslate2_engine import ORIGIN, SETTINGS
from ...inference.engine import keeping_threads_of_torch
from ...loading import load_confidence, load_tokenizers, named_languages, vocabulary_size
from ...model import ScratchForConditionalGeneration
from ...model.confidence import FILE
from ...model.configuration_scratch import ScratchConfig
from ...model.text import has_whole_symbols
from ..web.described import read_origin
from .checking import copy_tokenizers, load_model, verify_scores
from .generation_settings import as_list, read_search, settings_in_use, warn_of_settings
from .marian import check_plain_weights, misfits

logger = logging.getLogger(__name__)

LEAST_POSITIONS = 1024  # in the table of sinusoidal positions, whose size is a hard limit in CTranslate2

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_python": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "gelu_accurate": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}

# In addition to `NEEDS_GENERATE`: settings that translate_batch lacks.
_LEFT_OUT = ("begin_suppress_tokens",)
# Settings that change the probabilities of tokens: before the softmax in CTranslate2 4.8, after it in `generate()`.
_BEFORE_SOFTMAX = ("min_new_tokens", "min_length", "no_repeat_ngram_size", "repetition_penalty")
_BEFORE_SOFTMAX += ("bad_words_ids", "suppress_tokens")


def find_obstacles(config: ScratchConfig) -> list[str]:
    """Describe each field of a config that CTranslate2 cannot express, with the values that it can."""
    positions = ("sinusoidal", "learned", "rotary")
    needed = {"activation_function": _ACTIVATIONS, "position_embedding_type": positions, "share_layers": [False]}
    needed["norm_type"] = ("layer_norm", "rms_norm")
    obstacles = misfits(config, needed)
    if config.position_embedding_type != "rotary" and config.d_model % 2:
        obstacles.append(f"d_model is {config.d_model} and must be even")
    if not as_list(config.eos_token_id):
        obstacles.append(f"eos_token_id is {config.eos_token_id!r} and must be a token id or several")
    if config.decoder_start_token_id is None:
        obstacles.append("decoder_start_token_id is None and must be a token id")
    return obstacles


def read_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, side: str) -> list[str]:
    """
    The token of each row of an embedding. Rows without a token get placeholders.

    Raises:
        UserError: the tokenizer has more ids than the embedding has rows.
    """
    if (size := vocabulary_size(tokenizer)) > rows:
        raise UserError(
            f"the {side} tokenizer has {size} ids, but its embedding has only {rows} rows; use the tokenizer that the "
            "model was trained with"
        )
    # Some ids below `size` may lack a token too, as in encodings of tiktoken.
    tokens = [*tokenizer.convert_ids_to_tokens(range(size)), *[None] * (rows - size)]
    return [f"<unused {row}>" if token is None else token for row, token in enumerate(tokens)]


def _copy_linear(spec: Any, layers: list[nn.Linear]) -> None:
    """Copy layers that have the same input, packed into one."""
    spec.weight = torch.cat([layer.weight for layer in layers])
    if layers[0].bias is not None:
        spec.bias = torch.cat([layer.bias for layer in layers])


def _copy_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = norm.weight
    if isinstance(norm, nn.LayerNorm):
        spec.beta = norm.bias


def _copy_attention(spec: Any, attention: nn.Module, norm: nn.Module, is_self: bool) -> None:
    query, key_and_value = [attention.q_proj], [attention.k_proj, attention.v_proj]
    inputs = [query + key_and_value] if is_self else [query, key_and_value]
    for linear, layers in zip(spec.linear, [*inputs, [attention.o_proj]], strict=True):
        _copy_linear(linear, layers)
    _copy_norm(spec.layer_norm, norm)


def _copy_stack(spec: Any, stack: nn.Module, rows: int) -> None:
    """Copy an encoder or decoder, with a table of `rows` positions."""
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = stack.embed_tokens.weight.clone()  # since quantization works in place
    spec.scale_embeddings = float(stack.embed_scale)
    if stack.config.position_embedding_type != "rotary":
        places, zeros = torch.arange(rows, device=stack.device)[None], torch.zeros(1, rows, stack.config.d_model)
        spec.position_encodings.encodings = stack.embed_positions.add(zeros.to(stack.device), places)[0]
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        _copy_attention(layer_spec.self_attention, layer.self_attn, layer.self_attn_layer_norm, True)
        if hasattr(layer, "cross_attn"):
            _copy_attention(layer_spec.attention, layer.cross_attn, layer.cross_attn_layer_norm, False)
        feed_forward = layer.feed_forward
        activated = feed_forward.up_proj if feed_forward.gate_proj is None else feed_forward.gate_proj
        _copy_linear(layer_spec.ffn.linear_0, [activated])
        if feed_forward.gate_proj is not None:
            _copy_linear(layer_spec.ffn.linear_0_noact, [feed_forward.up_proj])
        _copy_linear(layer_spec.ffn.linear_1, [feed_forward.down_proj])
        _copy_norm(layer_spec.ffn.layer_norm, layer.feed_forward_layer_norm)
    if not isinstance(stack.layer_norm, nn.Identity):
        _copy_norm(spec.layer_norm, stack.layer_norm)


@torch.no_grad()
def to_ctranslate2(
    model: ScratchForConditionalGeneration, source_vocabulary: list[str], target_vocabulary: list[str]
) -> transformer_spec.TransformerSpec:
    """
    The model as a CTranslate2 specification. To write it, call its `optimize`, which quantizes, and then its `save`.

    Raises:
        UserError: CTranslate2 cannot express the model; the message names each field, its value and the value needed.
    """
    check_plain_weights(model)
    config = model.config
    if obstacles := find_obstacles(config):
        raise UserError(f"CTranslate2 cannot express this model: {'; '.join(obstacles)}")
    shared: dict[str, Any] = {
        "activation": common_spec.Activation[_ACTIVATIONS[config.activation_function]],
        "ffn_glu": config.gated_ffn,
        "rms_norm": config.norm_type == "rms_norm",
    }
    if config.position_embedding_type == "rotary":
        parameters = config.rope_parameters
        linear = parameters["rope_type"] == "linear"
        shared |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": parameters["rope_theta"]}
        shared |= {"rotary_scaling_type": attention_spec.RotaryScalingType.Linear} if linear else {}
        shared |= {"rotary_scaling_factor": parameters["factor"]} if linear else {}

    def norms(final_norm: bool) -> dict[str, bool]:
        # The runtime supports a final norm after post-norm layers, but only a pre-norm spec has a place for it: the
        # stack's own `pre_norm` is set below.
        return {"pre_norm": config.norm_position == "pre" or final_norm, "no_final_norm": not final_norm}

    encoder = transformer_spec.TransformerEncoderSpec(
        config.encoder_layers, config.encoder_attention_heads, **shared, **norms(config.final_norm is True)
    )
    decoder = transformer_spec.TransformerDecoderSpec(
        config.decoder_layers, config.decoder_attention_heads, **shared, **norms(bool(config.final_norm))
    )
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    if config.position_embedding_type == "rotary":
        vars(encoder).pop("position_encodings", None)  # every encoder spec has it
    rows, search = config.max_position_embeddings, read_search(model)
    if config.position_embedding_type == "sinusoidal":
        rows = max(rows, LEAST_POSITIONS, search.longest + 1)
    for stack_spec, stack in ((encoder, model.model.encoder), (decoder, model.model.decoder)):
        stack_spec.pre_norm = config.norm_position == "pre"
        _copy_stack(stack_spec, stack, rows)
    _copy_linear(decoder.projection, [model.lm_head])
    spec.register_source_vocabulary(source_vocabulary)
    spec.register_target_vocabulary(target_vocabulary)
    if config.unk_token_id is not None and config.unk_token_id < len(source_vocabulary):
        spec.config.unk_token = source_vocabulary[config.unk_token_id]
    spec.config.eos_token = target_vocabulary[search.ends[0]]
    spec.config.decoder_start_token = target_vocabulary[search.start]
    if config.bos_token_id is not None:
        spec.config.bos_token = target_vocabulary[config.bos_token_id]
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.validate()
    return spec


def write_settings(model: ScratchForConditionalGeneration, target_vocabulary: list[str], folder: Path) -> list[str]:
    """
    Write the model's generation settings as arguments of CTranslate2's translate_batch. Warns about those that it lacks
    or interprets differently, and returns these warnings.
    """
    search, generation = read_search(model), model.generation_config
    left_out, differences = warn_of_settings(model, _LEFT_OUT, SETTINGS), list[str]()
    # Its search ends with the beam_size-th hypothesis, as early_stopping=True does; with a patience of 2, when it has
    # twice as many. Others go on while a longer one may win: later than that hardly ever at a penalty of 1 or less, but
    # often where the penalty favours long ones.
    is_never, penalty = search.early_stopping == "never", search.length_penalty
    if search.num_beams > 1 and search.early_stopping is not True and penalty > (0 if is_never else 1):
        differences.append(
            f"CTranslate2 ends its search after a number of hypotheses, but this model has early_stopping="
            f"{search.early_stopping!r} and a length_penalty of {penalty}: other translations may win"
        )
    if not generation.renormalize_logits and (changed := settings_in_use(model, _BEFORE_SOFTMAX)):
        others = ", and other translations may win" if search.num_beams > 1 else ""
        differences.append(
            f"CTranslate2 applies {', '.join(changed)} before its softmax, and generate() after it: scores and "
            f"confidences differ{others}"
        )
    settings = {
        "beam_size": search.num_beams,
        "patience": 1 if search.early_stopping is True else 2,
        "num_hypotheses": min(generation.num_return_sequences or 1, search.num_beams),
        "length_penalty": search.length_penalty,
        "min_decoding_length": search.shortest,
        "max_decoding_length": search.longest,
        "max_input_length": 0,  # no limit: the default silently truncates input to 1,024 tokens
        "no_repeat_ngram_size": generation.no_repeat_ngram_size or 0,
        "repetition_penalty": generation.repetition_penalty or 1.0,
        "end_token": [target_vocabulary[token] for token in search.ends],
    }
    if search.banned:
        settings["suppress_sequences"] = [[target_vocabulary[token] for token in row] for row in search.banned]
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for difference in differences:
        logger.warning(difference)
    return left_out + differences


def _is_plain(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizers library alone does the same: Transformers neither reads other files nor cleans spaces."""
    ids = tokenizer("a ! b 's", add_special_tokens=False).input_ids
    return tokenizer.is_fast and tokenizer.decode(ids) == tokenizer.backend_tokenizer.decode(ids)


class CTranslate2Scorer:
    """Scores given targets with a converted model, to compare it with the original."""

    def __init__(self, folder: Path, source_vocabulary: list[str], target_vocabulary: list[str]):
        with keeping_threads_of_torch():
            self.translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
        self.source_vocabulary, self.target_vocabulary = source_vocabulary, target_vocabulary

    def __call__(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each target, and of the end token after it."""
        found = self.translator.score_batch(
            [[self.source_vocabulary[token] for token in source] for source in sources],
            [[self.target_vocabulary[token] for token in target] for target in targets],
        )
        return [result.log_probs for result in found]


def write_unlogged(name: str, folder: Path) -> list[str]:
    """As `write_ctranslate2`, but return what it warns of, instead of logging anything."""
    package, warnings = logging.getLogger("modeling_scratch"), BufferingHandler(1_000)
    warnings.setLevel(logging.WARNING)
    handlers, propagates = package.handlers, package.propagate
    package.handlers, package.propagate = [warnings], False
    try:
        write_ctranslate2(name, folder)
    finally:
        package.handlers, package.propagate = handlers, propagates
    return [record.getMessage() for record in warnings.buffer]


def write_ctranslate2(name: str, folder: Path, quantization: str = "float32") -> float:
    """
    Write a model for CTranslate2's Translator to a new folder, with its generation settings and tokenizers.

    Args:
        name: a model folder or Hub name.
        quantization: the type of the stored weights, as CTranslate2 names it.

    Returns:
        The largest difference between its log-probabilities and the original's, before quantization.

    Raises:
        UserError: CTranslate2 cannot express the model, or its results differ from the original's.
    """
    model = load_model(name, ScratchConfig.model_type).float().eval()
    rows = (model.config.vocab_size, model.config.target_vocab_size)
    tokenizers = zip(load_tokenizers(name), rows, ("source", "target"), strict=True)
    vocabularies = [read_vocabulary(*side) for side in tokenizers]
    # First in float32, to compare it with the original: after quantization it differs, at a cost that BLEU measures.
    for weight_type in dict.fromkeys(["float32", quantization]):
        spec = to_ctranslate2(model, *vocabularies)
        spec.optimize(weight_type)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        spec.save(str(folder))
        if weight_type == "float32":
            difference = verify_scores(model, CTranslate2Scorer(folder, *vocabularies))
    if quantization not in ctranslate2.get_supported_compute_types("cpu"):
        with keeping_threads_of_torch():
            computes = ctranslate2.Translator(str(folder), device="cpu").compute_type
        logger.warning(
            f"{quantization} is how the weights are stored: on a CPU like this one, CTranslate2 converts them to "
            f"{computes} when it loads them"
        )
    differences = write_settings(model, vocabularies[1], folder)
    copy_tokenizers(name, folder)
    source, target = load_tokenizers(name)
    origin = read_origin(name, model.config) | {"name": name, "languages": named_languages(source)}
    origin |= {"takesAnyText": has_whole_symbols(source), "limit": model.config.max_position_embeddings}
    origin["hasLearnedPositions"] = model.config.position_embedding_type == "learned"
    origin["longestSource"] = getattr(model.generation_config, "longest_training_source", None)
    origin["differences"] = differences
    origin["hasPlainTokenizers"] = all(map(_is_plain, (source, target)))
    (folder / ORIGIN).write_text(json.dumps(origin, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if (confidence := load_confidence(name)) is not None:
        (folder / FILE).write_text(confidence.text(), encoding="utf-8")
    return difference
