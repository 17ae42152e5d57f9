"""What an exported page knows of its model: languages, search, examples, and the facts that it shows."""

import html
from pathlib import Path
from typing import Any

from ..convert.generation_settings import Search, read_search, warn_of_settings
from ..errors import UserError
from ..hub.card import check_license
from ..hub.languages import language_name
from ..hub.run_records import RunRecords
from ..metrics import describe_score, scores_in, title_of
from ..model.modeling_scratch import ScratchForConditionalGeneration
from ..runs.folder import RECIPE
from ..runs.metrics_file import METRICS, scored_set
from .runtime import PACKAGES

_EXAMPLES = 3
_LONGEST_EXAMPLE = 80  # letters
# Settings of `generate()` that no export has, besides those that no other runtime has.
_LEFT_OUT = ("begin_suppress_tokens", "no_repeat_ngram_size", "repetition_penalty", "renormalize_logits")


def describe_model(
    model: ScratchForConditionalGeneration, name: str, languages: list[str], is_quantized: bool
) -> dict[str, Any]:
    """
    The content of a page's model.json, without the names of its files.

    Args:
        name: the folder or Hub name of the model.
        languages: codes of source and target; empty: unknown.

    Raises:
        UserError: the model has no end token or start token.
    """
    search = exported_search(model, name, "the page", keeps_phrases=False)
    run = records_of(name)
    return {
        "title": title_of_model(name, languages),
        "languages": languages,
        "languageNames": _names(languages),
        "longestSource": model.config.max_position_embeddings,
        "startToken": search.start,
        "search": {
            "numBeams": search.num_beams,
            "lengthPenalty": search.length_penalty,
            "earlyStopping": search.early_stopping,
            "minNewTokens": search.shortest,
            "maxNewTokens": search.longest,
            "endTokens": search.ends,
            "suppressedTokens": [token for sequence in search.banned if len(sequence) == 1 for token in sequence],
        },
        "examples": examples_of(run),
        "facts": [*_facts(run), *_technical_facts(model, is_quantized)],
    }


def exported_search(model: ScratchForConditionalGeneration, name: str, where: str, keeps_phrases: bool) -> Search:
    """
    A model's search, for an export. Warns of what the export leaves out.

    Args:
        name: the folder or Hub name of the model.
        where: what is exported.
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
    """Its languages in English, or the last part of its name if they are unknown."""
    return " to ".join(_names(languages)) or Path(name).name


def _names(languages: list[str]) -> list[str]:
    return [html.unescape(language_name(tag)) for tag in languages]  # escaped for Markdown


def records_of(name: str) -> RunRecords | None:
    """The records of a model folder that is a run's."""
    return RunRecords(Path(name)) if all((Path(name) / file).is_file() for file in (RECIPE, METRICS)) else None


def examples_of(run: RunRecords | None) -> list[str]:
    """Short sentences that a run has translated."""
    found = dict.fromkeys(" ".join(sample.get("source", "").split()) for sample in (run.samples if run else []))
    return [text for text in found if 0 < len(text) <= _LONGEST_EXAMPLE][:_EXAMPLES]


def _facts(run: RunRecords | None) -> list[tuple[str, str]]:
    """What the page says of where the model is from and how good it is: names and values, in plain text."""
    if run is None:
        return []
    found = [run.provenance(), *run.mixed()]
    facts = [("Trained on", ", ".join(dict.fromkeys(each.dataset_name for each in found)))]
    for record in run.scored:
        scores = ", ".join(f"{title_of(key)} {describe_score(record, key)}" for key in scores_in(record))
        facts.append((f"Scores on {scored_set(record)}", scores))
    facts.append(("License", check_license(run.recipe.hub.license)))
    return facts


def _technical_facts(model: ScratchForConditionalGeneration, is_quantized: bool) -> list[tuple[str, str]]:
    count = sum(parameter.numel() for parameter in model.parameters())
    weights = "8-bit weights" if is_quantized else "32-bit weights"
    return [
        ("Model", f"Transformer with {count:,} parameters, {weights}"),
        ("Runs on", ", ".join(f"{each.name} {each.version} ({each.license})" for each in PACKAGES)),
    ]
