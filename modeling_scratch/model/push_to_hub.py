"""Push a model in memory to the Hub: everything in one commit, with a model card."""

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
    """What a model knows about itself. `base_model` is the name or folder that it was loaded from."""
    config, parameters = model.config, list(model.parameters())  # tied weights count once
    generation = getattr(model, "generation_config", None)
    return ModelFacts(
        config,
        generation.to_diff_dict() if generation is not None else {},
        sum(parameter.numel() for parameter in parameters),
        sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters}),
        base_model=model.name_or_path or None,
    )


def _public_name(api: HfApi, name: str | None) -> str | None:
    """The name if it is that of a public repository, else None: it may be a folder, or private."""
    may_be_repository = name and re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).exists()
    try:
        return name if may_be_repository and api.repo_exists(name, token=False) else None
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
    Push a model and its card in one commit. The text of an existing card is kept.

    Args:
        save: writes the model to a folder.
        repo_id, ..., create_pr: as in `PreTrainedModel.push_to_hub`.
        tags: for the card, in addition to those it has.
    """
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not revision.startswith("refs/pr") and not create_pr:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    existing = None
    if api.file_exists(repo_id, CARD, revision=revision):
        existing = ModelCard.load(api.hf_hub_download(repo_id, CARD, revision=revision))
    card = existing
    if existing is None or not existing.text.strip():  # the Hub's form for new repositories writes only metadata
        facts.base_model = _public_name(api, facts.base_model if facts.base_model != repo_id else None)
        card = make_card(facts, repo_id, metadata=existing.data.to_dict() if existing else {})
    old_tags = card.data.tags or []
    new_tags = [tag for tag in tags or [] if tag not in old_tags]
    with TemporaryDirectory() as name:
        save(name)
        if new_tags or card is not existing:
            card.data.tags = [*old_tags, *new_tags]
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
