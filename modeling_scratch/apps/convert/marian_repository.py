"""Publishes a model also as a Marian model, which Transformers loads without code from the repository."""

import shutil
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from ...errors import UserError
from ...hub.allowed_files import ALLOWED, chosen_files, matches
from ...hub.card import METADATA, marian_card, split_front_matter, with_owners_text
from ...hub.check import check_conversion
from ...hub.push import PastPushes, Prepared, PushOptions, Ready, as_private_as, prepared_push
from ...run.folder import COMPANIONS
from ...run.records import run_of
from .checking import LARGEST_DIFFERENCE, convert_folder
from .marian import to_marian


def prepared_marian(folder: Path, options: PushOptions, card: str) -> AbstractContextManager[Ready]:
    """
    Convert a model that has been checked, check the result, and look at its repository, `options.marian`.

    Args:
        options: of the model's own push.
        card: the model's card.

    Raises:
        UserError: Marian cannot express the model, or the reasons of `prepared_push`.
    """
    preparation = partial(prepare_marian, options.repo_id, card)
    return prepared_push(folder, as_private_as(options, options.of_marian()), preparation)


def prepare_marian(
    original: str,
    card_of_original: str,
    folder: Path,
    options: PushOptions,
    copy: Path,
    past: PastPushes,
    card_on_hub: str | None = None,
) -> Prepared:
    """
    Convert the model in a folder, check that a process without this project gets the same from the result, and make
    its card, which keeps what its owner wrote on the Hub.

    Args:
        original, card_of_original: the repository of the model before its conversion, and its card, whose license is
            this model's too.
        copy: the empty folder for the result.

    Raises:
        UserError: Marian cannot express the model, or something is wrong with the folder or the card.
    """
    files, run = chosen_files(folder), run_of(folder)
    try:
        if run is not None and run.recipe.data.feature_columns:
            raise UserError("Marian models take no features (data.feature_columns)")
        difference = convert_folder(str(folder), copy, "scratch", to_marian)
    except UserError as error:
        raise UserError(f"--marian: {error}; to push the model alone, leave out --marian") from error
    findings = check_conversion(folder, copy, run, LARGEST_DIFFERENCE)
    for name, path in files.items():
        if matches(name, COMPANIONS):
            shutil.copyfile(path, copy / name)
    license = split_front_matter(card_of_original)[0].get("license")
    languages, author = options.languages or past.languages, options.author or past.author
    card = marian_card(folder, options.repo_id, original, difference, run, license, languages, author)
    names = sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file())
    pushed = {name: copy / name for name in names if matches(name, (*ALLOWED, *COMPANIONS))}
    return Prepared(pushed, with_owners_text(card, card_on_hub, METADATA), findings)
