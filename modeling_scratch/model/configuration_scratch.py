"""ScratchConfig: every architectural choice that the model can express, typed and checked."""

import copy
import difflib
import inspect
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import transformers
from transformers.activations import ACT2FN
from transformers.utils import logging

if int(transformers.__version__.split(".")[0]) < 5:
    raise ImportError(f"this model needs Transformers 5.0 or newer; {transformers.__version__} is installed")

from transformers import PreTrainedConfig

logger = logging.get_logger(__name__)

# Where the Auto classes find the code that travels with a checkpoint: "<file without .py>.<class>".
AUTO_MAP = {
    "AutoConfig": "configuration_scratch.ScratchConfig",
    "AutoModel": "modeling_scratch.ScratchModel",
    "AutoModelForSeq2SeqLM": "modeling_scratch.ScratchForConditionalGeneration",
    "AutoModelForTextEncoding": "modeling_scratch.ScratchEncoderModel",
}

# Where `pipeline` finds the class for a task.
CUSTOM_PIPELINES = {
    "translation": {"impl": "translation_pipeline.ScratchTranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
}

ROPE_KEYS = {"rope_type", "rope_theta", "factor"}
_ROPE_DEFAULTS = {"rope_type": "default", "rope_theta": 10000.0}
_LOADED = "_loaded_from_a_file"

# Further keys that Transformers hands to a config: neither fields of ours nor attributes of every PreTrainedConfig.
TRANSFORMERS_KEYS = {"_attn_implementation_internal", "_commit_hash", "_experts_implementation_internal"}
TRANSFORMERS_KEYS |= {"_name_or_path", "attn_implementation", "auto_map", "custom_pipelines", "experts_implementation"}
TRANSFORMERS_KEYS |= {"model_type", "name_or_path", "num_labels", "output_attentions", "per_layer_config"}
TRANSFORMERS_KEYS |= {"quantization_config", "rope_theta", "tie_last_hidden_states", "torch_dtype"}


class ScratchConfig(PreTrainedConfig):
    """
    The architecture of an encoder-decoder Transformer ("Attention Is All You Need", https://arxiv.org/abs/1706.03762).

    Raises:
        ValueError: a field has the wrong type, is out of range or contradicts another; or a name is unknown (the
            message lists the closest valid ones).
    """

    model_type = "scratch"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    }
    base_model_fsdp_plan = {}  # encoder and decoder each have one

    # An explicit `__init__` is the one form of config class that every release of Transformers 5 understands.
    def __init__(
        self,
        vocab_size: int = 32000,  # source vocabulary; also the target's if decoder_vocab_size is None
        decoder_vocab_size: int | None = None,  # None or equal: one vocabulary
        d_model: int = 512,  # width of every layer's input and output
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        encoder_attention_heads: int = 8,
        decoder_attention_heads: int = 8,
        encoder_ffn_dim: int = 2048,  # width inside the feed-forward networks
        decoder_ffn_dim: int = 2048,
        activation_function: str = "relu",  # a name in transformers.activations.ACT2FN
        gated_ffn: bool = False,  # with "silu" this is SwiGLU
        norm_position: Literal["pre", "post"] = "pre",  # "post" as in the paper; "pre" trains more easily
        norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm",
        norm_eps: float = 1e-5,  # added to the variance inside every norm
        final_norm: bool | Literal["decoder"] = True,  # a norm after each stack; "decoder": after the decoder alone
        share_layers: bool = False,  # a stack is one layer applied repeatedly (Dehghani et al. 2019)
        position_embedding_type: Literal["sinusoidal", "learned", "rotary", "alibi"] = "sinusoidal",
        max_position_embeddings: int = 1024,  # hard limit for learned positions; the length to plan for with the others
        rope_parameters: dict | None = None,  # rotary positions: rope_theta; factor with rope_type "linear"
        scale_embedding: bool = True,  # by sqrt(d_model) (section 3.4)
        share_encoder_decoder_embeddings: bool = True,
        tie_word_embeddings: bool = True,  # the output projection is the decoder's embedding
        attention_bias: bool = True,
        ffn_bias: bool = True,
        lm_head_bias: bool = False,
        dropout: float = 0.1,  # on the embeddings and on each sub-layer's output (section 5.4)
        attention_dropout: float = 0.0,  # on the attention weights
        activation_dropout: float = 0.0,  # inside the feed-forward networks
        init_std: float | None = None,  # None: Xavier uniform for matrices and N(0, 1/d_model) for embeddings
        pad_token_id: int | None = 0,
        bos_token_id: int | None = 1,
        eos_token_id: int | list[int] | None = 2,
        unk_token_id: int | None = 3,
        decoder_start_token_id: int | None = 1,
        use_cache: bool = True,
        is_encoder_decoder: bool = True,
        **kwargs,
    ):
        given = {name: value for name, value in locals().items() if name in self.fields()}
        for generic, name in self.attribute_map.items():
            if generic in kwargs:
                given[name] = kwargs.pop(generic)
        is_loaded = kwargs.pop(_LOADED, False)
        if not is_loaded and (unknown := sorted(set(kwargs) - self.known_keys())):
            raise ValueError("; ".join(self.describe_unknown(name) for name in unknown))
        self._check(given)
        given["rope_parameters"] = _ROPE_DEFAULTS | (given["rope_parameters"] or {})
        kwargs["auto_map"] = AUTO_MAP | (kwargs.get("auto_map") or {})
        # A copy, because `pipeline` modifies what it finds.
        kwargs["custom_pipelines"] = copy.deepcopy(CUSTOM_PIPELINES) | (kwargs.get("custom_pipelines") or {})
        # Set before and after: some releases read the fields while initialising, and some change them.
        vars(self).update(given)
        super().__init__(is_encoder_decoder=is_encoder_decoder, **kwargs)
        vars(self).update(given)

    def __eq__(self, other) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    @classmethod
    def fields(cls) -> dict[str, inspect.Parameter]:
        """The parameters of `__init__` by name, with their types and defaults."""
        parameters = inspect.signature(ScratchConfig.__init__).parameters
        return {name: parameter for name, parameter in parameters.items() if name not in ("self", "kwargs")}

    @classmethod
    def field_names(cls) -> list[str]:
        """The fields that a model file may set."""
        return [name for name in cls.fields() if name != "is_encoder_decoder"]

    @classmethod
    def known_keys(cls) -> set[str]:
        """Every key that a config.json of this version may hold."""
        return {*cls.fields(), *cls.attribute_map, *vars(PreTrainedConfig()), *TRANSFORMERS_KEYS}

    @classmethod
    def describe_unknown(cls, name: str) -> str:
        """The error message for a name that is not a field."""
        close = difflib.get_close_matches(name, [*cls.field_names(), *cls.attribute_map], n=3)
        close = list(dict.fromkeys(cls.attribute_map.get(each, each) for each in close))
        hint = f"; did you mean {' or '.join(close)}?" if close else f"; valid fields: {', '.join(cls.field_names())}"
        return f"ScratchConfig has no field {name!r}{hint}"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """
        Build a config from a loaded config.json. Unknown keys are kept and named in one warning, so that a checkpoint
        modified by another tool still loads.
        """
        names = cls.known_keys()
        unknown = {key: value for key, value in config_dict.items() if key not in names}
        known = {key: value for key, value in config_dict.items() if key in names} | {_LOADED: True}
        if unknown:
            logger.warning(
                f"The loaded config has keys that ScratchConfig does not know: {', '.join(sorted(unknown))}."
            )
        result = super().from_dict(known, **kwargs)  # kwargs may hold keywords that only this release has
        config = result[0] if isinstance(result, tuple) else result
        for key, value in unknown.items():
            if not hasattr(cls, key):  # never replace a property or a method
                setattr(config, key, value)
        return result

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "ScratchConfig":
        """
        The config as one stack sees it. With `decoder=True`, the generic names (`num_hidden_layers`,
        `num_attention_heads`, `vocab_size`) hold the decoder's values; the result is a copy if the stacks differ.

        Caches take their depth from here. `generate` asks for neither stack and means the vocabulary that it generates
        from: with two vocabularies, the decoder's.
        """
        of_decoder = {
            "encoder_layers": self.decoder_layers,
            "encoder_attention_heads": self.decoder_attention_heads,
            "encoder_ffn_dim": self.decoder_ffn_dim,
            "vocab_size": self.target_vocab_size,
        }
        wants_decoder = not encoder and (decoder or self.target_vocab_size != self.vocab_size)
        if not wants_decoder or all(getattr(self, name) == value for name, value in of_decoder.items()):
            return self
        config = copy.deepcopy(self)
        for name, value in of_decoder.items():
            setattr(config, name, value)
        return config

    @property
    def target_vocab_size(self) -> int:
        """Rows of the decoder's embedding and of the output projection."""
        return self.vocab_size if self.decoder_vocab_size is None else self.decoder_vocab_size

    @staticmethod
    def _check(given: dict[str, Any]) -> None:
        """Raise ValueError for fields that have the wrong type, are out of range or contradict each other."""
        for name, parameter in ScratchConfig.fields().items():
            if not _fits(given[name], parameter.annotation):
                raise ValueError(f"{name} is {given[name]!r}; it must be {_in_words(parameter.annotation)}")
        fields = SimpleNamespace(**given)
        fields.target_vocab_size = fields.vocab_size if fields.decoder_vocab_size is None else fields.decoder_vocab_size
        sizes = ["vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim"]
        sizes += ["decoder_ffn_dim", "encoder_attention_heads", "decoder_attention_heads", "max_position_embeddings"]
        for name in sizes:
            if given[name] is not None and given[name] < 1:
                raise ValueError(f"{name} is {given[name]}; it must be at least 1")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= given[name] < 1:
                raise ValueError(f"{name} is {given[name]}; a probability must be in [0, 1)")
        for name in ("norm_eps", "init_std"):
            if given[name] is not None and not 0 < given[name] < float("inf"):
                raise ValueError(f"{name} is {given[name]}; it must be a positive number")
        for side in ("encoder", "decoder"):
            heads = given[f"{side}_attention_heads"]
            if fields.d_model % heads:
                raise ValueError(f"d_model ({fields.d_model}) must be divisible by {side}_attention_heads ({heads})")
            head_dim = fields.d_model // heads
            if fields.position_embedding_type == "rotary" and head_dim % 2:
                raise ValueError(
                    f"rotary positions rotate pairs: d_model / {side}_attention_heads is {head_dim} and must be even"
                )
        if fields.activation_function not in ACT2FN:
            close = difflib.get_close_matches(fields.activation_function, list(ACT2FN), n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else "; see transformers.activations.ACT2FN"
            raise ValueError(f"activation_function {fields.activation_function!r} is unknown{hint}")
        if fields.share_encoder_decoder_embeddings and fields.target_vocab_size != fields.vocab_size:
            raise ValueError(
                f"share_encoder_decoder_embeddings needs one vocabulary, but vocab_size is {fields.vocab_size} and "
                f"decoder_vocab_size is {fields.decoder_vocab_size}; set share_encoder_decoder_embeddings to False"
            )
        source, target = fields.vocab_size, fields.target_vocab_size
        limits = {"pad_token_id": min(source, target), "unk_token_id": max(source, target)}
        limits |= dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id"), target)
        for name, limit in limits.items():
            if given[name] == []:
                raise ValueError(f"{name} is an empty list; give an id, or None for no such token")
            for token_id in given[name] if isinstance(given[name], list) else [given[name]]:
                if token_id is not None and not 0 <= token_id < limit:
                    raise ValueError(f"{name} is {token_id}; it must be in [0, {limit})")
        _check_rope_parameters(given["rope_parameters"] or {})


def _check_rope_parameters(given: dict[str, Any]) -> None:
    if unknown := sorted(set(given) - ROPE_KEYS):
        raise ValueError(f"rope_parameters has no key {unknown[0]!r}; it has {', '.join(sorted(ROPE_KEYS))}")
    rope_type = given.get("rope_type", "default")
    if rope_type not in ("default", "linear"):
        raise ValueError(f"rope_parameters: rope_type is {rope_type!r}; it must be default or linear")
    theta, factor = given.get("rope_theta", 10000.0), given.get("factor")
    if not _fits(theta, float) or not 0 < theta < float("inf"):
        raise ValueError(f"rope_parameters: rope_theta is {theta!r}; with {rope_type!r} it must be positive")
    if rope_type == "linear" and (not _fits(factor, float) or not 1 <= factor < float("inf")):
        raise ValueError(f"rope_parameters: factor is {factor!r}; with 'linear' it must be at least 1")


def _in_words(annotation: Any) -> str:
    if get_origin(annotation) is Literal or isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return " or ".join(_in_words(each) for each in get_args(annotation))
    return getattr(annotation, "__name__", repr(annotation)).replace("NoneType", "None")


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value matches an annotation. An integer is a valid float; a boolean is not a number."""
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return any(_fits(value, each) for each in get_args(annotation))
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if get_origin(annotation) is list:
        return isinstance(value, list) and all(_fits(each, *get_args(annotation)) for each in value)
    if annotation in (int, float):
        return isinstance(value, (int, float) if annotation is float else int) and not isinstance(value, bool)
    return isinstance(value, type(None) if annotation is None else annotation)


__all__ = ["ScratchConfig"]
