"""Generate a folder's model card, from a run's records or from its files, and check that a card is complete."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from ..card_markdown import hub_link
from ..errors import UserError
from ..redaction import TOKEN
from .allowed_files import CARD
from .card_edits import split_front_matter
from .languages import language_code
from .model_folder import Conversion, read_facts
from .plain_card import METADATA, limits, make_card
from .run_card import card_of_run
from .run_records import RunRecords

REQUIRED_METADATA = ("language", "license", "library_name", "pipeline_tag", "tags", "metrics", "model-index")


def check_license(license: str) -> str:
    """The normalized identifier of a license. UserError if it cannot be one."""
    license = license.strip().lower()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise UserError(f"license is {license!r}; see https://huggingface.co/docs/hub/repositories-licenses")
    return license


def license_of(folder: Path, run: RunRecords | None, given: str | None = None) -> str | None:
    """
    The license of the model in a folder: the one given, the recipe's, that in the folder's card, or the default; None:
    it is not known.
    """
    if (given := given_license(run, given)) is not None:
        return check_license(given)
    with suppress(ValueError, OSError):  # a push reports what is wrong with a card
        text = (folder / CARD).read_text(encoding="utf-8")
        if license := split_front_matter(text)[0].get("license"):
            return ", ".join(map(str, license)) if isinstance(license, list) else str(license)
    return _default_license(run)


def _default_license(run: RunRecords | None) -> str | None:
    """apache-2.0 for a run from random weights. None for any other model, since its weights come from elsewhere."""
    return "apache-2.0" if run and run.recipe.model.start_from is None else None


def given_license(run: RunRecords | None, option: str | None) -> str | None:
    """The license in the options, or else in the run's recipe."""
    return run.recipe.hub.license if option is None and run else option


def check_languages(*tags: str) -> None:
    """Raise UserError for language tags that have no ISO 639 code."""
    if wrong := [tag for tag in tags if language_code(tag) is None]:
        raise UserError(
            f"{' and '.join(map(repr, wrong))}: not ISO 639 codes such as en or deu, which a model card must have; set "
            "data.source_language and data.target_language to codes, and data.source_column and data.target_column to "
            "the names of the columns if they have other names"
        )


def required_metadata(run: RunRecords | None) -> tuple[str, ...]:
    """
    Metadata that the card must have. Without a run, the license, languages and scores may be unknown; for a run that
    started from another model, the license.
    """
    if run is None:
        return tuple(METADATA)
    return tuple(key for key in REQUIRED_METADATA if key != "license" or _default_license(run))


def check_card(text: str, required: Iterable[str] = REQUIRED_METADATA) -> None:
    """
    Check a model card offline. What the values in its metadata may be, the Hub checks before a commit.

    Args:
        required: metadata that must be there.

    Raises:
        UserError: names everything that is missing or wrong.
    """
    metadata, _ = split_front_matter(text)
    problems = []
    for key in required:
        if metadata.get(key) in (None, "", [], {}):
            how = ", e.g. [en, de]: the recipe's languages are not ISO 639 codes" if key == "language" else ""
            problems.append(f"metadata: {key} is missing{how}")
    try:
        ModelCard(text.removeprefix("\ufeff"))
    except Exception as error:
        problems.append(f"metadata: huggingface_hub cannot read it: {' '.join(str(error).split())}")
    if TOKEN.search(text):
        problems.append("it holds what looks like a token (hf_...): remove it, and revoke it if it is one")
    if problems:
        raise UserError(f"the model card is not complete: {'; '.join(problems)}")


def build_card(
    folder: Path,
    repo_id: str,
    run: RunRecords | None,
    license: str | None = None,
    languages: Sequence[str] | None = None,
    author: str | None = None,
    has_space: bool = False,
) -> ModelCard:
    """
    Generate the card of a model folder.

    Args:
        repo_id: where the model goes, user/name.
        run: the run whose folder it is, if any.
        license: an identifier from https://huggingface.co/docs/hub/repositories-licenses. None: apache-2.0 for a run
            from random weights, unknown for any other model.
        languages: codes of source and target. None: those that the recipe or the tokenizer names, if any.
        author: a name. None: the card names no author, only who shares the model.
        has_space: whether a Space of the same name has a page to try the model on.

    Raises:
        UserError: a record is missing or damaged, or an argument is wrong.
    """
    if wrong := [tag for tag in languages or () if language_code(tag) is None]:
        raise UserError(f"--languages: {' and '.join(map(repr, wrong))} is not an ISO 639 code such as en or deu")
    languages = [tag.strip().replace("_", "-") for tag in languages or ()]
    metadata = {"license": _default_license(run) if license is None else check_license(license)}
    if run is None:
        card = _card_of_model(folder, repo_id, languages, metadata, author)
    else:
        card = card_of_run(run, repo_id, languages, metadata, author)
    if has_space:
        link = f"[try it on a page](https://huggingface.co/spaces/{repo_id}), where it translates in your browser."
        card.text = card.text.replace("\n## ", f"\nWithout installing anything, {link}\n\n## ", 1)
    return card


# -- without a run -----------------------------------------------------------------------------------------------------


def _card_of_model(
    folder: Path, repo_id: str, languages: Iterable[str], metadata: dict[str, Any], author: str | None
) -> ModelCard:
    facts, conversion = read_facts(folder, languages), Conversion.read(folder)
    metadata["language_bcp47"] = list(languages) if any("-" in tag for tag in languages) else None
    if conversion is None:
        return make_card(facts, repo_id, author=author, metadata=metadata)
    facts.base_model = conversion.name
    before = hub_link(conversion.name) if conversion.name else f"the {conversion.kind}"
    known = f"see the card of {before}" if conversion.name else "ask whoever trained it"
    named = f", {before}," if conversion.name else ""
    origin = f"It was converted from a {conversion.kind}{named} by modeling_scratch {conversion.version}."
    how = " and how" if metadata["license"] else ", how, and on what terms they may be used"
    sections = {
        "Results": f"Not measured: the converted model has not been scored for this card. When it was converted, its "
        f"logits on random ids differed from those of {before} by at most {conversion.largest_difference:.1e}, in "
        "float32.",
        "Training": f"The weights were taken from {before}. For what they were trained on{how}, {known}; "
        "no training after the conversion is recorded.",
        "Limits and intended use": limits(
            facts, f"For what the model was trained on, {known}. Try it on text of your own before you use it."
        ),
    }
    return make_card(facts, repo_id, origin, author, metadata, sections)
