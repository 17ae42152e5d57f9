"""Check a model card offline: its metadata must be complete, and readable by the Hub."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..errors import UserError
from ..redaction import TOKEN
from .card_edits import split_front_matter
from .languages import NO_LANGUAGES, language_code

REQUIRED_METADATA = ("language", "license", "library_name", "pipeline_tag", "tags", "metrics", "model-index")


def check_card(text: str, required: Iterable[str] = REQUIRED_METADATA) -> None:
    """
    Check a model card.

    Args:
        required: metadata that must be there.

    Raises:
        UserError: names everything that is missing or wrong.
    """
    metadata, _ = split_front_matter(text)
    problems = [*_check_metadata(metadata, required), *_check_reading(text, metadata)]
    if TOKEN.search(text):
        problems.append("it holds what looks like a token (hf_...): remove it, and revoke it if it is one")
    if problems:
        raise UserError(f"the model card is not complete: {'; '.join(problems)}")


def _check_metadata(metadata: dict[str, Any], required: Iterable[str]) -> Iterator[str]:
    for key in required:
        if metadata.get(key) in (None, "", [], {}):
            how = ", e.g. [en, de]: the recipe's languages are not ISO 639 codes" if key == "language" else ""
            yield f"metadata: {key} is missing{how}"
    for key in ("license", "license_name", "license_link", "library_name", "pipeline_tag"):
        value = metadata.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            yield f"metadata: {key} is {value!r}; it must be text"
    if metadata.get("license") == "other" and not (metadata.get("license_name") and metadata.get("license_link")):
        yield "metadata: the license 'other' needs license_name and license_link"
    for key in ("language", "tags", "metrics", "datasets", "base_model"):
        value = metadata.get(key)
        values = value if isinstance(value, list) else [] if value in (None, "", {}) else [value]
        if not all(isinstance(each, str) and each.strip() for each in values):
            hint = "; a code that YAML reads otherwise, such as no, needs quotes" if key == "language" else ""
            yield f"metadata: {key} is {value!r}; it must be text, or a list of texts{hint}"
        else:
            yield from _check_names(key, values)


def _check_names(key: str, values: list[str]) -> Iterator[str]:
    for each in values:
        if key == "language" and language_code(each) != each and each not in NO_LANGUAGES:
            yield f"metadata: language {each!r} is not an ISO 639 code such as en or deu (pt-BR goes to language_bcp47)"
        if key in ("datasets", "base_model"):
            try:
                validate_repo_id(each)
            except HFValidationError:
                yield f"metadata: {key} {each!r} is not a name on the Hub"


def _check_reading(text: str, metadata: dict[str, Any]) -> Iterator[str]:
    """What huggingface_hub reads from the metadata must equal what is written there."""
    try:
        card = ModelCard(text.removeprefix("\ufeff"))
        read = card.data.to_dict()
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        yield f"metadata: huggingface_hub cannot read it: {' '.join(str(error).split())}"
        return
    for key, value in metadata.items():
        if value is not None and read.get(key) != value:
            yield f"metadata: {key} is read by huggingface_hub as {read.get(key)!r}"
    for result in card.data.eval_results or []:
        value = result.metric_value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            yield f"metadata: model-index: {result.metric_type} is {value!r}; it must be a finite number"
