"""The pipeline of the commands and the service, for one model or several; it says which translations were cut."""

from pathlib import Path
from typing import Any

import torch
from transformers.utils.hub import resolve_revision

from .ensemble import check_is_scratch, load_together
from .errors import UserError
from .loading import best_device
from .model.translation_pipeline import ScratchTranslationPipeline


def load_pipeline(names: list[str], revision: str | None = None) -> ScratchTranslationPipeline:
    """
    The pipeline for a model folder or Hub name, or for an ensemble of several, on the accelerator if there is one. All
    files of a repository are from one commit.

    Raises:
        UserError: one cannot be loaded, or is another kind of model; they do not go together; or a revision is given
            for a folder or for several models.
    """
    if revision is not None and len(names) > 1:
        raise UserError(f"--revision {revision}: it applies to one model, but {len(names)} are given")
    if revision is not None and Path(names[0]).is_dir():
        raise UserError(f"--revision {revision}: {names[0]} is a folder; only a repository on the Hub has revisions")
    revisions = [resolve_revision(name, revision) for name in names]
    for name, commit in zip(names, revisions, strict=True):
        check_is_scratch(name, revision=commit)
    model, source, target = load_together(names, revisions)
    return Watched(model=model, tokenizer=source, target_tokenizer=target, device=best_device())


class Watched(ScratchTranslationPipeline):
    """Says of each translation whether it was cut off at the maximum length."""

    def postprocess(self, outputs: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """As inherited, with "cut" in each translation."""
        results, sequences = super().postprocess(outputs), outputs["sequences"]
        ends = self.model.generation_config.eos_token_id
        ends = torch.tensor([] if ends is None else ends, dtype=sequences.dtype, device=sequences.device)
        ended = torch.isin(sequences, ends).any(dim=-1)  # (batch_size, several)
        for translations, whole in zip(results, ended.tolist(), strict=True):
            for translation, is_whole in zip(translations, whole, strict=True):
                translation["cut"] = not is_whole
        return results
