"""ScratchConfig: every choice of architecture that the model can express, typed and checked."""

import copy
import difflib
from dataclasses import fields
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Where the Auto classes find the code that travels with a checkpoint: "<file without .py>.<class>".
AUTO_MAP = {
    "AutoConfig": "configuration_scratch.ScratchConfig",
    "AutoModel": "modeling_scratch.ScratchModel",
    "AutoModelForSeq2SeqLM": "modeling_scratch.ScratchForConditionalGeneration",
    "AutoModelForTextEncoding": "modeling_scratch.ScratchEncoderModel",
}

# Where `pipeline` finds that of a task.
CUSTOM_PIPELINES = {
    "translation": {
        "impl": "translation_pipeline.ScratchTranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
    },
}

ROPE_TYPES = ("default", "linear", "dynamic", "yarn")
ROPE_KEYS = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor"}
ROPE_KEYS |= {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}

# Keys that are no fields, but that Transformers itself (loading, saving, Trainer, quantizers) hands to a config.
TRANSFORMERS_KEYS = frozenset(
    [
        "_attn_implementation_internal",
        "_commit_hash",
        "_experts_implementation_internal",
        "_name_or_path",
        "attn_implementation",
        "auto_map",
        "custom_pipelines",
        "experts_implementation",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "per_layer_config",
        "quantization_config",
        "rope_theta",
        "tie_last_hidden_states",
        "torch_dtype",
    ]
)


@strict
class ScratchConfig(PreTrainedConfig):
    r"""
    The architecture of an encoder-decoder Transformer ("Attention Is All You Need", https://arxiv.org/abs/1706.03762).

    Args:
        vocab_size (`int`, defaults to 32000): source vocabulary; also the target's if `decoder_vocab_size` is unset.
        decoder_vocab_size (`int`, *optional*): target vocabulary. None or equal to `vocab_size`: one vocabulary. (But
            where embeddings are not shared, `resize_token_embeddings` takes a number for a vocabulary of its own.)
        d_model (`int`, defaults to 512): width of every layer's input and output.
        encoder_layers, decoder_layers (`int`, default to 6): depth of each stack.
        encoder_attention_heads, decoder_attention_heads (`int`, default to 8): heads; each must divide `d_model`.
        encoder_ffn_dim, decoder_ffn_dim (`int`, default to 2048): width inside the feed-forward networks.
        activation_function (`str`, defaults to `"relu"`): a name that `transformers.activations.ACT2FN` knows.
        gated_ffn (`bool`, defaults to `False`): gate the feed-forward; with `"silu"` this is SwiGLU.
        norm_position (`str`, defaults to `"pre"`): `"post"` as in the paper, or `"pre"`, which trains more easily.
        norm_type (`str`, defaults to `"layer_norm"`): `"layer_norm"` or `"rms_norm"`.
        norm_eps (`float`, defaults to 1e-5): added to the variance inside every norm.
        final_norm (`bool`, defaults to `True`): a norm after the last layer of each stack.
        position_embedding_type (`str`, defaults to `"sinusoidal"`): `"sinusoidal"`, `"learned"` or `"rotary"`.
        max_position_embeddings (`int`, defaults to 1024): length that learned positions end at, and that training and
            generation plan for; sinusoidal and rotary positions extend beyond it.
        rope_parameters (`dict`, *optional*): for rotary positions `{"rope_type": "default", "rope_theta": 10000.0}`;
            `"linear"`, `"dynamic"` and `"yarn"` stretch them by a `factor`, as Transformers documents it. (With
            `"dynamic"` a sentence's translation depends on the longest sequence of its batch.)
        scale_embedding (`bool`, defaults to `True`): multiply embeddings by sqrt(d_model) (section 3.4).
        share_encoder_decoder_embeddings (`bool`, defaults to `True`): one embedding for source and target.
        tie_word_embeddings (`bool`, defaults to `True`): the output projection is the decoder's embedding.
        attention_bias, ffn_bias (`bool`, default to `True`), lm_head_bias (`bool`, defaults to `False`): biases.
        dropout (`float`, defaults to 0.1): on the embeddings and on each sub-layer's output (section 5.4).
        attention_dropout (`float`, defaults to 0.0): on the attention weights.
        activation_dropout (`float`, defaults to 0.0): inside the feed-forward networks.
        init_std (`float`, *optional*): None: Xavier uniform for matrices and N(0, 1/d_model) for embeddings;
            a number: N(0, init_std^2) for both.
        pad_token_id, bos_token_id, eos_token_id, unk_token_id (`int`, default to 0, 1, 2, 3): special tokens.
        decoder_start_token_id (`int`, defaults to 1): the token that the decoder starts from.
        use_cache (`bool`, defaults to `True`): return keys and values for the next decoding step.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a field has the wrong type, is out of range, or contradicts
            another.
        ValueError: an unknown name was given; the message lists the closest valid ones.
    """

    model_type = "scratch"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    }
    base_model_fsdp_plan = {}  # encoder and decoder bring their own

    vocab_size: int = 32000
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    gated_ffn: bool = False
    norm_position: Literal["pre", "post"] = "pre"
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    norm_eps: float = 1e-5
    final_norm: bool = True
    position_embedding_type: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_position_embeddings: int = 1024
    rope_parameters: dict | None = None
    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    attention_bias: bool = True
    ffn_bias: bool = True
    lm_head_bias: bool = False
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    init_std: float | None = None
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    unk_token_id: int | None = 3
    decoder_start_token_id: int | None = 1
    use_cache: bool = True
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs):
        unknown = sorted(set(kwargs) - self._known_keys())
        if unknown:
            raise ValueError("; ".join(self.describe_unknown(name) for name in unknown))
        self._check_rope_parameters()
        # A checkpoint of an earlier version lacks the classes that came later; "repository--" says whose code it is.
        given = kwargs.get("auto_map") or {}
        repository, separator, _ = given.get("AutoConfig", "").rpartition("--")
        kwargs["auto_map"] = {name: repository + separator + path for name, path in AUTO_MAP.items()} | given
        # Copied: `pipeline` writes into what it finds.
        kwargs["custom_pipelines"] = copy.deepcopy(CUSTOM_PIPELINES) | (kwargs.get("custom_pipelines") or {})
        super().__post_init__(**kwargs)

    def _check_rope_parameters(self) -> None:
        """Before Transformers fills in what is missing: what it would only warn of, or fail at later."""
        given = self.rope_parameters or {}
        if unknown := sorted(set(given) - ROPE_KEYS):
            raise ValueError(f"rope_parameters has no key {unknown[0]!r}; it has {', '.join(sorted(ROPE_KEYS))}")
        rope_type = given.get("rope_type", given.get("type", "default"))
        if rope_type not in ROPE_TYPES:
            raise ValueError(f"rope_parameters: rope_type is {rope_type!r}; it must be one of {', '.join(ROPE_TYPES)}")
        limits = {"rope_theta": 0.0} | ({} if rope_type == "default" else {"factor": 1.0})
        for name, limit in limits.items():
            value = given.get(name, None if name == "factor" else 10000.0)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or value < limit or value in (0, float("inf")):
                least = "at least 1" if limit else "positive"
                raise ValueError(f"rope_parameters: {name} is {value!r}; with {rope_type!r} it must be {least}")

    @classmethod
    def field_names(cls) -> list[str]:
        """The names in the table of this class's docstring: those that a model file may set."""
        inherited = {field.name for field in fields(PreTrainedConfig)} - {"is_encoder_decoder"}
        return [field.name for field in fields(cls) if field.name not in inherited]

    @classmethod
    def _known_keys(cls) -> set[str]:
        return {field.name for field in fields(cls)} | set(cls.attribute_map) | TRANSFORMERS_KEYS

    @classmethod
    def describe_unknown(cls, name: str) -> str:
        """What to say of a name that is no field."""
        close = difflib.get_close_matches(name, [*cls.field_names(), *cls.attribute_map], n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else f"; valid fields: {', '.join(cls.field_names())}"
        return f"ScratchConfig has no field {name!r}{hint}"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """
        Build a config from a loaded config.json. Keys that are unknown here are kept and named in one warning, so that
        a checkpoint touched by another tool still loads.
        """
        unknown = {key: value for key, value in config_dict.items() if key not in cls._known_keys()}
        known = {key: value for key, value in config_dict.items() if key not in unknown}
        if unknown:
            logger.warning(
                f"The loaded config has keys that ScratchConfig does not know: {', '.join(sorted(unknown))}."
            )
        result = super().from_dict(known, **kwargs)
        config = result[0] if isinstance(result, tuple) else result
        for key, value in unknown.items():
            if not hasattr(cls, key):  # a property or a method stays what it is
                setattr(config, key, value)
        return result

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "ScratchConfig":
        """
        The config as one stack sees it: generic names (`num_hidden_layers`, `num_attention_heads`, `vocab_size`) read
        as the decoder's when `decoder=True`: a copy if the stacks differ. Caches take their depth from here.
        """
        of_decoder = {
            "encoder_layers": self.decoder_layers,
            "encoder_attention_heads": self.decoder_attention_heads,
            "encoder_ffn_dim": self.decoder_ffn_dim,
            "vocab_size": self.target_vocab_size,
        }
        if not decoder or encoder or all(getattr(self, name) == value for name, value in of_decoder.items()):
            return self
        config = copy.deepcopy(self)
        for name, value in of_decoder.items():
            setattr(config, name, value)
        return config

    @property
    def target_vocab_size(self) -> int:
        """Rows of the decoder's embedding and of the output projection."""
        return self.vocab_size if self.decoder_vocab_size is None else self.decoder_vocab_size

    def validate_architecture(self):
        """Cross-field checks; `@strict` runs them after construction."""
        sizes = ["vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads"]
        sizes += ["decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings"]
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.decoder_vocab_size is not None and self.decoder_vocab_size < 1:
            raise ValueError(f"decoder_vocab_size is {self.decoder_vocab_size}; it must be at least 1, or None")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; a probability must be in [0, 1)")
        for name in ("norm_eps", "init_std"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}; it must be a positive number")
        for side in ("encoder", "decoder"):
            heads = getattr(self, f"{side}_attention_heads")
            if self.d_model % heads:
                raise ValueError(f"d_model ({self.d_model}) must be divisible by {side}_attention_heads ({heads})")
            if self.position_embedding_type == "rotary" and (self.d_model // heads) % 2:
                raise ValueError(
                    f"rotary positions rotate pairs: d_model / {side}_attention_heads is {self.d_model // heads}, "
                    "which must be even"
                )
        if self.activation_function not in ACT2FN:
            close = difflib.get_close_matches(self.activation_function, list(ACT2FN), n=3)
            raise ValueError(
                f"activation_function {self.activation_function!r} is unknown"
                + (f"; did you mean {' or '.join(close)}?" if close else "; see transformers.activations.ACT2FN")
            )
        if self.share_encoder_decoder_embeddings and self.target_vocab_size != self.vocab_size:
            raise ValueError(
                f"share_encoder_decoder_embeddings needs one vocabulary, but vocab_size is {self.vocab_size} and "
                f"decoder_vocab_size is {self.decoder_vocab_size}; set share_encoder_decoder_embeddings to False"
            )
        self._validate_special_tokens()

    def _validate_special_tokens(self):
        both, target = min(self.vocab_size, self.target_vocab_size), self.target_vocab_size
        limits = {"pad_token_id": both, "bos_token_id": target, "unk_token_id": max(self.vocab_size, target)}
        limits |= {"decoder_start_token_id": target, "eos_token_id": target}
        for name, limit in limits.items():
            value = getattr(self, name)
            if value == []:
                raise ValueError(f"{name} is an empty list; give an id, or None for no such token")
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not 0 <= token_id < limit:
                    raise ValueError(f"{name} is {token_id}; it must be in [0, {limit})")


__all__ = ["ScratchConfig"]
