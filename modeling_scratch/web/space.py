"""Publishes a model's page as a static Space on the Hub, linked to the model."""

from pathlib import Path

from huggingface_hub.utils import yaml_dump

from ..card_markdown import hub_link
from ..hub.allowed_files import CARD
from ..hub.card import check_license
from ..hub.options import PushOptions
from ..hub.push import SPACE, Prepared, Pushed, given_license, push
from ..hub.record import LastPush, read_last_push
from ..runs.folder import RECIPE
from .export import PAGE, export_page, read_described


def push_space(folder: Path, options: PushOptions) -> Pushed:
    """
    Push the page of a model that is on the Hub to a static Space of the same name, in one commit.

    Raises:
        PushError, UserError: as in `push` and `export_page`.
    """
    return push(folder, options, SPACE, prepare_space)


def prepare_space(folder: Path, options: PushOptions, copy: Path, card_on_hub: str | None = None) -> Prepared:
    """
    Write a model's page to a folder, and make the card of its Space.

    Args:
        copy: an empty folder.
        card_on_hub: kept if it was edited there.
    """
    page = copy / "page"
    export_page(str(folder), page)
    last = read_last_push(folder, SPACE.key(options.repo_id), options.branch)
    was_edited = card_on_hub is not None and last.card is not None and card_on_hub != last.card
    card = card_on_hub if was_edited else _card(folder, options, read_described(page)["title"])
    files = {path.relative_to(page).as_posix(): path for path in sorted(page.rglob("*")) if path.is_file()}
    return Prepared(files, card, [], LastPush(card=card, files=sorted({*files, CARD})))


def _card(folder: Path, options: PushOptions, title: str) -> str:
    """The Space's README.md, whose metadata make it a static Space of this model."""
    license = given_license(folder, options) or read_last_push(folder, options.repo_id, options.branch).license
    if (folder / RECIPE).is_file():
        license = check_license(license)
    metadata = {
        "title": title,
        "emoji": "💬",
        "colorFrom": "blue",
        "colorTo": "indigo",
        "sdk": "static",
        "app_file": PAGE,
        "models": [options.repo_id],
        "short_description": "Translates in your browser",
    }
    metadata |= {"license": license} if license else {}
    text = (
        f"{title}: a page that translates with {hub_link(options.repo_id)} in the reader's browser. The text never "
        "leaves the page."
    )
    return f"---\n{yaml_dump(metadata)}---\n\n# {title}\n\n{text}\n"
