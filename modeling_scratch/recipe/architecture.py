"""The fields of a new model as users write them: their names, types and ranges, taken from ScratchConfig."""

import difflib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, create_model
from transformers.activations import ACT2FN

from ..errors import UserError
from ..model.configuration_scratch import ScratchConfig
from .errors import describe
from .section import Probability, Section

_Size = Annotated[int, Field(ge=1, le=100_000_000)]  # the product of two still counts a tensor's bytes
_Positive = Annotated[float, Field(gt=0)]
_Id = Annotated[int, Field(ge=0)]


class _RopeParameters(Section):  # only for the types: ScratchConfig has the defaults
    rope_type: Literal["default", "linear"] = "default"
    rope_theta: _Positive = 10000.0
    factor: Annotated[float, Field(ge=1)] = 1.0


def _is_an_activation(name: str) -> str:
    if name not in ACT2FN:
        close = difflib.get_close_matches(name, ACT2FN) or sorted(ACT2FN)
        raise ValueError(f"{name!r} is unknown; Transformers has {', '.join(close)}")
    return name


_FIELDS = ScratchConfig.fields()
_TYPES: dict[str, Any] = {
    name: _Size if field.annotation is int else field.annotation for name, field in _FIELDS.items()
}
# Narrower types than the annotations in ScratchConfig.
_TYPES |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), Probability)
_TYPES |= {"norm_eps": _Positive, "init_std": _Positive | None, "decoder_vocab_size": _Size | None}
_TYPES |= {"rope_parameters": _RopeParameters | None}
_TYPES |= dict.fromkeys(("pad_token_id", "bos_token_id", "unk_token_id", "decoder_start_token_id"), _Id | None)
_TYPES |= {"eos_token_id": _Id | Annotated[list[_Id], Field(min_length=1)] | None}
_TYPES |= {"activation_function": Annotated[str, AfterValidator(_is_an_activation)]}
Architecture = create_model(
    "Architecture", __base__=Section, **{name: (_TYPES[name], field.default) for name, field in _FIELDS.items()}
)


def check_fields(fields: dict[str, Any], where: str) -> None:
    """UserError if ScratchConfig fields are unknown, of the wrong type or out of range. It starts with `where`."""
    try:
        Architecture.model_validate(fields)
    except ValidationError as error:
        raise UserError(f"{where}: {describe(error, Architecture)}") from None
