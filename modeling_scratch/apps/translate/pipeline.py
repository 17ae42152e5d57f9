"""The pipeline of the commands and the service: for one model or several, in one process or several."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from huggingface_hub import resolve_revision

from ...errors import UserError
from ...inference.ensemble import check_is_scratch, load_together
from ...languages import says_something
from ...loading import best_device
from ...model.batched_generation import setting_of, tokenize
from ...model.translation_pipeline import SENTENCES_AHEAD, ScratchTranslationPipeline
from .workers import Worker, WorkerLost, before_forking, start_workers

# A window of fewer sentences is translated in this process; workers get parts of at most this many.
_LEAST_FOR_WORKERS = 128
_LARGEST_PART = 512

Translations = list[list[dict[str, Any]]]  # of each sentence, best first


def load_pipeline(names: list[str], revision: str | None = None) -> "CommandPipeline":
    """
    The pipeline for a model folder or Hub name, or for an ensemble of several, on the accelerator if there is one. All
    files of a repository come from one commit.

    Raises:
        UserError: a model cannot be loaded, or is of another kind; the models do not go together; or a revision is
            given for a folder or for several models.
    """
    if revision is not None and len(names) > 1:
        raise UserError(f"--revision {revision}: it applies to one model, but {len(names)} are given")
    if revision is not None and Path(names[0]).is_dir():
        raise UserError(f"--revision {revision}: {names[0]} is a folder; only a repository on the Hub has revisions")
    revisions = [_with_commit(name, revision) for name in names]
    for name, commit in zip(names, revisions, strict=True):
        check_is_scratch(name, revision=commit)
    model, source, target = load_together(names, revisions)
    return CommandPipeline(model=model, tokenizer=source, target_tokenizer=target, device=best_device())


def _with_commit(name: str, revision: str | None) -> str | None:
    """A revision that stands for the commit it names now; the same for a folder, or if the Hub does not say."""
    try:
        return revision if Path(name).exists() else resolve_revision(name, revision=revision)
    except Exception:  # of many types; loading will explain it
        return revision


def load_pipeline_with_workers(names: list[str], revision: str | None, workers: int | None) -> "CommandPipeline":
    """
    `load_pipeline`, with processes that share the work.

    Args:
        workers: how many; 0: none; None: one per core, up to a limit, where workers are possible.

    Raises:
        UserError: as in `load_pipeline`; or workers are not possible here.
    """
    with before_forking() as threads:
        pipeline = load_pipeline(names, revision)
        pipeline.workers = start_workers([pipeline], workers, threads)
    return pipeline


def _said(sentences: Sequence[str]) -> list[str]:
    """The sentences, with an empty one instead of each that says nothing."""
    return [sentence if says_something(sentence) else "" for sentence in sentences]


class CommandPipeline(ScratchTranslationPipeline):
    """
    A pipeline that adds "cut" to each translation, whether it was cut off at the maximum length, that leaves what says
    nothing as it is, and that shares sentences out among its `workers`.
    """

    workers: Sequence[Worker] = ()

    @property
    def can_fork(self) -> bool:
        """Whether forked processes can translate with it."""
        return self.model.device.type == "cpu"

    @property
    def limit(self) -> int:
        """The most source tokens that the model takes."""
        return self.model.config.max_position_embeddings

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        """The number of tokens in each sentence, even if the model cannot take as many; 0 if it says nothing."""
        return [len(row) for row in tokenize(self.tokenizer, _said(sentences), None)]

    def preprocess(self, sentences: list[str], first: int = 0) -> list[list[int]]:
        """As inherited, but a sentence that says nothing counts as empty."""
        return super().preprocess(_said(sentences), first)

    def postprocess(self, outputs: dict[str, Any]) -> Translations:
        """As inherited, with "cut" in each translation."""
        results, sequences = super().postprocess(outputs), outputs["sequences"]
        ends = self.model.generation_config.eos_token_id
        ends = torch.tensor([] if ends is None else ends, dtype=sequences.dtype, device=sequences.device)
        ended = torch.isin(sequences[..., 1:], ends).any(dim=-1)  # (batch_size, several)
        for translations, whole in zip(results, ended.tolist(), strict=True):
            for translation, is_whole in zip(translations, whole, strict=True):
                translation["cut"] = not is_whole
        return results

    def translate(self, sentences: list[str], settings: dict[str, Any]) -> Translations:
        """Translate sentences in this process, as a worker does."""
        return super()._translate(sentences, progress=None, **settings)

    def _translate(
        self, sentences: list[str], progress: Callable[[int], Any] | None, first: int = 0, **settings
    ) -> Translations:
        """
        As inherited, but what says nothing stays, and many sentences are translated by the workers; not when sampling:
        all would draw the same.
        """
        samples = setting_of(self.model, settings["forward"], "do_sample")
        if not self.workers or samples or len(sentences) < _LEAST_FOR_WORKERS:
            results = super()._translate(sentences, progress=progress, first=first, **settings)
        else:
            results = self._translate_by_workers(sentences, progress, first, settings)
        for sentence, said, translations in zip(sentences, _said(sentences), results, strict=True):
            for translation in translations if not said else ():
                translation["translation_text"] = sentence.strip()
        return results

    def _translate_by_workers(
        self, sentences: list[str], progress: Callable[[int], Any] | None, first: int, settings: dict[str, Any]
    ) -> Translations:
        self.preprocess(sentences, first)  # raises an error if a sentence cannot be translated
        # Sentences are dealt out in order of length, so that all parts take about the same time.
        by_length = sorted(range(len(sentences)), key=lambda place: -len(sentences[place]))
        count = len(self.workers) * math.ceil(len(sentences) / len(self.workers) / _LARGEST_PART)
        parts = [by_length[start::count] for start in range(count)]
        results: Translations = [[] for _ in sentences]
        shared = self._shared([[sentences[place] for place in part] for part in parts], settings)
        for part, found in zip(parts, shared, strict=True):
            for place, translations in zip(part, found, strict=True):
                results[place] = translations
            if progress:
                progress(len(part))
        return results

    def _stream(self, inputs: Iterator[str], ahead: int, translate: Callable) -> Iterator[list[dict[str, Any]]]:
        """As inherited; with workers, at least 1,024 sentences are read ahead, however small the batches."""
        return super()._stream(inputs, max(ahead, SENTENCES_AHEAD) if self.workers else ahead, translate)

    def _shared(self, parts: list[list[str]], settings: dict[str, Any]) -> Iterator[Translations]:
        """The translations of each part, in order, each by whichever worker is free."""
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            free.put(worker)

        def translated(part: list[str]) -> Translations:
            worker = free.get()
            try:
                return worker(self, part, settings)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(self.workers)) as threads:
            try:
                yield from threads.map(translated, parts)
            except BaseException as error:
                for worker in self.workers:  # otherwise the threads would wait for them
                    worker.close()
                if isinstance(error, WorkerLost):
                    raise UserError(f"{error}; if it ran out of memory, --workers 0 needs less") from error
                raise
