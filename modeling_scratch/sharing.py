"""A model in memory to the Hub: all of it in one commit, with a card that says what is known."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, ModelCard
from transformers import PreTrainedModel

from .plain_card import ModelFacts, make_card

CARD = "README.md"


def facts_in_memory(model: PreTrainedModel) -> ModelFacts:
    """What a model says of itself."""
    config, parameters = model.config, list(model.parameters())  # what is tied is there once
    generation = getattr(model, "generation_config", None)
    return ModelFacts(
        config,
        generation.to_diff_dict() if generation is not None else {},
        sum(parameter.numel() for parameter in parameters),
        sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters}),
        base_model=_loaded_from(config),
    )


def _loaded_from(config) -> str | None:
    """The repository that a model is from: Transformers notes it in the addresses of the code."""
    name, separator, _ = (getattr(config, "auto_map", None) or {}).get("AutoConfig", "").partition("--")
    return name if separator and name == config.name_or_path else None


def push(
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
    Push what `save` writes to a folder, and a card. A card that is there already stays, but for the tags.

    Args:
        repo_id, ..., create_pr: as `PreTrainedModel.push_to_hub` takes them.
        tags: for the card, besides those that it has.
    """
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not revision.startswith("refs/pr") and not create_pr:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    with TemporaryDirectory() as name:
        if api.file_exists(repo_id, CARD, revision=revision):
            card = ModelCard.load(api.hf_hub_download(repo_id, CARD, revision=revision))
        else:
            base = facts.base_model if facts.base_model != repo_id else None
            card = make_card(facts, repo_id, metadata={"base_model": base})
        card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *(tags or [])]))
        save(name)
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
