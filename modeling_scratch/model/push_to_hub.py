"""A model in memory to the Hub: all of it in one commit, with a card that says what is known."""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from transformers import PreTrainedModel

from .plain_card import ModelFacts, make_card

CARD = "README.md"


def facts_in_memory(model: PreTrainedModel) -> ModelFacts:
    """What a model says of itself; `base_model` is what it was loaded from, be it a folder."""
    config, parameters = model.config, list(model.parameters())  # what is tied is there once
    generation = getattr(model, "generation_config", None)
    return ModelFacts(
        config,
        generation.to_diff_dict() if generation is not None else {},
        sum(parameter.numel() for parameter in parameters),
        sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters}),
        base_model=model.name_or_path or None,
    )


def _public_name(api: HfApi, name: str | None) -> str | None:
    """The name that a model was loaded by, if everybody knows it as a repository's: it may be a folder's, or secret."""
    is_one = name and re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).exists()
    try:
        return name if is_one and api.repo_exists(name, token=False) else None
    except (HfHubHTTPError, OSError):
        return None


def push_model(
    save: Callable[[str], Any],
    facts: ModelFacts,
    repo_id: str,
    *,
    commit_message: str | None = None,
    commit_description: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    tags: list[str] | None = None,
) -> CommitInfo:
    """
    Push what `save` writes to a folder, and a card. The text of a card that is there already stays.

    Args:
        repo_id, ..., create_pr: as `PreTrainedModel.push_to_hub` takes them.
        tags: for the card, besides those that it has.
    """
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not revision.startswith("refs/pr") and not create_pr:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    there = None
    if api.file_exists(repo_id, CARD, revision=revision):
        there = ModelCard.load(api.hf_hub_download(repo_id, CARD, revision=revision))
    card = there
    if there is None or not there.text.strip():  # the Hub's form for a new repository writes the metadata alone
        facts.base_model = _public_name(api, facts.base_model if facts.base_model != repo_id else None)
        card = make_card(facts, repo_id, metadata=there.data.to_dict() if there else {})
    had = card.data.tags or []
    new = [tag for tag in tags or [] if tag not in had]
    with TemporaryDirectory() as name:
        save(name)
        if new or card is not there:
            card.data.tags = [*had, *new]
            card.save(Path(name) / CARD)
        paths = sorted(path for path in Path(name).rglob("*") if path.is_file())
        return api.create_commit(
            repo_id,
            [CommitOperationAdd(path.relative_to(name).as_posix(), path) for path in paths],
            commit_message=commit_message or "Upload model",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )
