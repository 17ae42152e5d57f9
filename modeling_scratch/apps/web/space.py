"""Publishes a model's page as a static Space on the Hub, linked to the model."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from huggingface_hub.utils import yaml_dump

from ...hub.card import license_of
from ...hub.card_markdown import hub_link
from ...hub.push import PastPushes, Prepared, PushOptions, Ready, as_private_as, identifiers, prepared_push
from ...run.records import run_of
from .export import export_page
from .site import PAGE, read_described


def prepared_space(folder: Path, options: PushOptions) -> AbstractContextManager[Ready]:
    """
    Write a model's page, and check that it may be pushed to the static Space that has the model's name. This comes
    before the push of the model, whose card links to the Space. A new Space is private if the model is private or
    gated, since the page contains its weights.

    Raises:
        UserError: for the reasons of `prepared_push` and `export_page`.
    """
    return prepared_push(folder, as_private_as(options, replace(options, repo_type="space")), _prepare)


def _prepare(
    folder: Path, options: PushOptions, copy: Path, past: PastPushes, card_on_hub: str | None = None
) -> Prepared:
    """The files of a page, and the Space's card: the one on the Hub if it has been edited there."""
    page = copy / "page"
    export_page([str(folder)], page, license=options.license)
    was_edited = card_on_hub is not None and not identifiers(card_on_hub.encode()) & past.sent
    if was_edited:
        card = card_on_hub
    else:
        license = license_of(folder, run_of(folder), options.license)
        card = _card(license, options, read_described(page)["directions"][0]["title"])
    files = {path.relative_to(page).as_posix(): path for path in sorted(page.rglob("*")) if path.is_file()}
    return Prepared(files, card)


def _card(license: str | None, options: PushOptions, title: str) -> str:
    """The Space's README.md, whose metadata make it a static Space linked to the model."""
    metadata = {
        "title": title,
        "emoji": "💬",
        "colorFrom": "blue",
        "colorTo": "indigo",
        "sdk": "static",
        "app_file": PAGE,
        "models": [options.repo_id],
        "short_description": "Runs in your browser",
    }
    metadata |= {"license": license} if license else {}
    text = (
        f"{title}: a page that runs {hub_link(options.repo_id)} in the reader's browser. The text never leaves the "
        "page."
    )
    return f"---\n{yaml_dump(metadata)}---\n\n# {title}\n\n{text}\n"
