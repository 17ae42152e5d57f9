"""Explain in one line why the model of a name cannot be loaded. This imports neither PyTorch nor Transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.constants import CONFIG_NAME
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from .errors import UserError
from .files import reading

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "source.spm", "vocab.json")  # at least one per tokenizer


@contextmanager
def loading(name: str, what: str) -> Iterator[None]:
    """
    Turn any error of a loader into a UserError about the folder or Hub name that it loads from.

    Args:
        what: "config", "tokenizer" or "weights".
    """
    path = Path(name)
    if not name:
        raise UserError("the name of the model is empty; a model is a folder or a Hub name")
    if not path.is_dir():
        _check_is_on_hub(name)
    doubt = ", or do not fit its config" if what == "weights" else ""
    cannot = f"its {what} cannot be read{doubt}: " if path.is_dir() else "it cannot be loaded from the Hub: "
    with reading(path, cannot):
        try:
            yield
        except Exception as error:
            needed = {"config": ("config.json",), "tokenizer": TOKENIZER_FILES}.get(what, ())
            if path.is_dir() and needed and not any((path / file).is_file() for file in needed):
                lacks = "model" if what == "config" else what
                raise UserError(f"{name} contains no {lacks}: {' or '.join(needed)} is missing") from error
            raise


def _check_is_on_hub(name: str) -> None:
    """
    Raise UserError for a name that is neither in the Hub's cache nor on the Hub, such as a mistyped folder. This asks
    once; a loader would repeat its requests for half a minute if the Hub does not answer.
    """
    path = Path(name)
    if path.is_file():
        raise UserError(f"{name} is a file; a model is a folder or a Hub name")
    if path.is_symlink():
        raise UserError(f"{name} is a symbolic link that leads to no folder")
    there = sorted(item.name for item in path.parent.iterdir() if item.is_dir()) if path.parent.is_dir() else []
    close = "".join(f" (did you mean {path.with_name(other)}?)" for other in get_close_matches(path.name, there, n=1))
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise UserError(f"{name}: no such folder{close}") from None
    if try_to_load_from_cache(name, CONFIG_NAME) is not None:
        return
    try:
        get_hf_file_metadata(hf_hub_url(name, CONFIG_NAME))
    except HfHubHTTPError as error:
        if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
            raise UserError(
                f"{name}: no such folder{close}, and no such model on the Hub; to load a private one, log in with: "
                "hf auth login"
            ) from error
    except Exception as error:  # of many types, if there is no answer
        raise UserError(f"{name}: no such folder{close}, and the Hub does not answer ({error})") from error
