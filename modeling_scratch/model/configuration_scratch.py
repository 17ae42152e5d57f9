"""ScratchConfig: every architectural choice that the model can express."""

import copy
import inspect
from typing import Any, Literal, get_args, get_origin

import transformers

if int(transformers.__version__.split(".")[0]) < 5:
    raise ImportError(f"this model needs Transformers 5.0 or newer; {transformers.__version__} is installed")

from transformers import PreTrainedConfig

# Where the Auto classes find the code that travels with a checkpoint: "<file without .py>.<class>".
AUTO_MAP = {
    "AutoConfig": "configuration_scratch.ScratchConfig",
    "AutoModel": "modeling_scratch.ScratchModel",
    "AutoModelForSeq2SeqLM": "modeling_scratch.ScratchForConditionalGeneration",
    "AutoModelForTextEncoding": "modeling_scratch.ScratchEncoderModel",
}

# What `pipeline` calls the task of a translator, and that of a model of any other pairs.
TRANSLATION, TEXT2TEXT = "translation", "text2text-generation"

_ROPE_DEFAULTS = {"rope_type": "default", "rope_theta": 10000.0}


def pipelines_for(task: str) -> dict[str, dict[str, Any]]:
    """The `custom_pipelines` of a model: where `pipeline` finds the class for its task."""
    return {task: {"impl": "translation_pipeline.ScratchTranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}}


def config_of_part(config: "ScratchConfig", reference: str) -> "ScratchConfig":
    """The config of an encoder or decoder that is saved without the other, and that AutoModel loads by itself."""
    config = copy.deepcopy(config)
    config.is_encoder_decoder = False  # code that reads this would expect both
    config.auto_map = {"AutoConfig": AUTO_MAP["AutoConfig"], "AutoModel": reference}
    config.custom_pipelines = {}
    return config


def task_of(config: PreTrainedConfig) -> str:
    """A model's task, by its `custom_pipelines`: translation, unless they name text2text-generation."""
    return TEXT2TEXT if TEXT2TEXT in (getattr(config, "custom_pipelines", None) or {}) else TRANSLATION


class ScratchConfig(PreTrainedConfig):
    """
    The architecture of an encoder-decoder Transformer ("Attention Is All You Need", https://arxiv.org/abs/1706.03762).

    As with every Transformers config, ranges are up to the caller; recipes are checked when they are read.

    Raises:
        ValueError: a field is of another type or not one of its named choices, or fields contradict each other.
    """

    model_type = "scratch"
    _auto_class = "AutoConfig"  # makes save_pretrained copy the code beside the weights, as do those of the models
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
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
        final_norm: Literal[True, False, "decoder"] = True,  # a norm after each stack, or after the decoder alone
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
        **kwargs,
    ):
        arguments = locals()
        given = {name: arguments[name] for name in self.fields()}
        for generic, name in self.attribute_map.items():
            if generic in kwargs:
                given[name] = kwargs.pop(generic)
        kwargs = {name: value for name, value in kwargs.items() if name not in vars(ScratchConfig)}  # ours stay
        rope = given["rope_parameters"] or {}
        older = {"rope_type": rope["type"]} if "type" in rope else {}  # what Transformers called it before 5.0
        given["rope_parameters"] = _ROPE_DEFAULTS | older | {key: rope[key] for key in rope if key != "type"}
        self._check(given)
        kwargs["auto_map"] = AUTO_MAP | (kwargs.get("auto_map") or {})
        kwargs["architectures"] = kwargs.get("architectures") or []  # an Auto class of several models iterates over it
        pipelines = kwargs.get("custom_pipelines") or {}
        kwargs["custom_pipelines"] = ({} if TEXT2TEXT in pipelines else pipelines_for(TRANSLATION)) | pipelines
        # Set before and after: some releases read the fields while initializing, and some change them.
        vars(self).update(given)
        super().__init__(**{"is_encoder_decoder": True} | kwargs)
        vars(self).update(given)

    def __eq__(self, other) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    @classmethod
    def fields(cls) -> dict[str, inspect.Parameter]:
        """The architectural choices by name, with their types and defaults."""
        parameters = inspect.signature(ScratchConfig.__init__).parameters
        return {name: parameter for name, parameter in parameters.items() if name not in ("self", "kwargs")}

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "ScratchConfig":
        """
        The config as one stack sees it. With `decoder=True`, the generic names (`num_hidden_layers`,
        `num_attention_heads`, `vocab_size`) hold the decoder's values; the result is a copy if the stacks differ.

        Caches take their depth from here. `generate` asks for neither stack but needs the vocabulary that it generates
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
        """Raise ValueError if a field is not of its type or choices, or if fields contradict each other."""
        for name, parameter in ScratchConfig.fields().items():
            kind, value = parameter.annotation, given[name]
            choices = [repr(choice) for choice in get_args(kind)]
            if get_origin(kind) is Literal:
                if repr(value) not in choices:  # 1 is not True
                    raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
                continue
            types = tuple(get_origin(option) or option for option in get_args(kind) or (kind,))
            types += (int,) if float in types else ()
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                expected = kind.__name__ if isinstance(kind, type) else kind
                raise ValueError(f"{name} is {value!r}; it must be of type {expected}")
        d_model, rotates = given["d_model"], given["position_embedding_type"] == "rotary"
        for side in ("encoder", "decoder"):
            heads = given[f"{side}_attention_heads"]
            if heads < 1 or d_model % heads:
                raise ValueError(f"d_model ({d_model}) must be divisible by {side}_attention_heads ({heads})")
            if rotates and d_model // heads % 2:
                raise ValueError(
                    f"rotary positions rotate pairs: d_model / {side}_attention_heads is {d_model // heads} and must "
                    "be even"
                )
        rope_type = given["rope_parameters"]["rope_type"]
        if rope_type not in ("default", "linear"):
            raise ValueError(f"rope_parameters: rope_type is {rope_type!r}; it must be default or linear")
        if rope_type == "linear" and "factor" not in given["rope_parameters"]:
            raise ValueError("rope_parameters: rope_type 'linear' needs a factor")
        source, target = given["vocab_size"], given["decoder_vocab_size"]
        if given["share_encoder_decoder_embeddings"] and target not in (None, source):
            raise ValueError(
                f"share_encoder_decoder_embeddings needs one vocabulary, but vocab_size is {source} and "
                f"decoder_vocab_size is {target}; set share_encoder_decoder_embeddings to False"
            )


__all__ = ["ScratchConfig"]
