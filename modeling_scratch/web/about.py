"""Describes an exported model: languages, search settings, examples, and the facts that a page shows."""

from pathlib import Path
from typing import Any

from ..alignments import alignment_heads
from ..cli import explained_import
from ..convert.generation_settings import SearchSettings, read_search, warn_of_settings
from ..errors import UserError, as_user_error
from ..hub.languages import language_name
from ..model.modeling_scratch import ScratchForConditionalGeneration
from .runtime import PACKAGES

# Settings of `generate()` that no export supports, in addition to `NEEDS_GENERATE`.
_LEFT_OUT = ("begin_suppress_tokens", "no_repeat_ngram_size", "repetition_penalty", "renormalize_logits")


def describe_model(
    model: ScratchForConditionalGeneration,
    name: str,
    languages: list[str],
    is_quantized: bool,
    license: str | None = None,
) -> dict[str, Any]:
    """
    The content of a page's model.json, without the names of its files.

    Args:
        name: the folder or Hub name of the model.
        languages: codes of source and target; empty: unknown.
        license: the model's; None: as its folder says.

    Raises:
        UserError: the model has no end token or start token, or lacks the alignment heads that its generation config
            names.
    """
    with as_user_error(f"{name}: ", ValueError):
        heads = alignment_heads(model)
    search = exported_search(model, name, "the page", keeps_phrases=False)
    described = describe_origin(name, languages, license)
    return described | {
        "longestSource": model.config.max_position_embeddings,
        "startToken": search.start,
        "alignmentHeads": heads,
        "search": {
            "numBeams": search.num_beams,
            "lengthPenalty": search.length_penalty,
            "earlyStopping": search.early_stopping,
            "minNewTokens": search.shortest,
            "maxNewTokens": search.longest,
            "endTokens": search.ends,
            "suppressedTokens": [token for sequence in search.banned if len(sequence) == 1 for token in sequence],
        },
        "facts": [*described["facts"], *_technical_facts(model, is_quantized)],
    }


def describe_origin(name: str, languages: list[str], license: str | None = None) -> dict[str, Any]:
    """A model's languages, examples, and the facts that its run recorded. Arguments as in `describe_model`."""
    try:
        from .run_facts import examples_of, facts_of, records_of
    except ModuleNotFoundError as error:
        if explained_import(error) is None:
            raise
        examples, facts = [], []  # a service may be installed without the extra for training
    else:
        run = records_of(name)
        examples, facts = examples_of(run), facts_of(Path(name), run, license)
    return {
        "title": title_of_model(name, languages),
        "languages": languages,
        "languageNames": [language_name(tag) for tag in languages],
        "examples": examples,
        "facts": facts,
    }


def exported_search(
    model: ScratchForConditionalGeneration, name: str, where: str, keeps_phrases: bool
) -> SearchSettings:
    """
    A model's search settings, for an export. Warns of those that the export leaves out.

    Args:
        name: the folder or Hub name of the model.
        where: what is exported, for messages.
        keeps_phrases: whether the export can ban sequences of several tokens.

    Raises:
        UserError: the model has no end token or start token.
    """
    search = read_search(model)
    for field, value in (("eos_token_id", search.ends), ("decoder_start_token_id", search.start)):
        if value is None or value == []:
            raise UserError(f"{name}: {where} needs {field} in the model's config")
    loses_phrases = not keeps_phrases and any(len(sequence) > 1 for sequence in search.banned)
    warn_of_settings(model, [*_LEFT_OUT, *(["bad_words_ids"] if loses_phrases else [])], where)
    return search


def title_of_model(name: str, languages: list[str]) -> str:
    """The model's languages in English, or the last part of its name if they are unknown."""
    return " to ".join(map(language_name, languages)) or Path(name).name


def _technical_facts(model: ScratchForConditionalGeneration, is_quantized: bool) -> list[tuple[str, str]]:
    count = sum(parameter.numel() for parameter in model.parameters())
    weights = "8-bit weights" if is_quantized else "32-bit weights"
    return [
        ("Model", f"Transformer with {count:,} parameters, {weights}"),
        ("Runs on", ", ".join(f"{each.name} {each.version} ({each.license})" for each in PACKAGES)),
    ]
