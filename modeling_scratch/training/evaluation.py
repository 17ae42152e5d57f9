"""Compute a model's loss and translations, and score an existing model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList

from ..data.batching import PairCollator, make_loader, plan_batches
from ..data.sources import load_split
from ..data.tokenization import pair_lengths, texts
from ..ensemble import first_member, load_together
from ..errors import Stopped, as_user_error
from ..metrics import score
from ..model.batched_generation import DEFAULT_BATCH_TOKENS, batches_by_length, generate_batch, tokenize
from ..recipe.schema import Recipe
from ..runs.processes import main_first, on_main
from ..runs.stopping import StopDecoding, StopRequest
from .alignment_scores import alignment_scores
from .loss import fused_cross_entropy
from .sharding import is_sharded

# The most tokens in a batch whose loss is evaluated: a global batch of many GPUs does not fit on one.
EVALUATION_TOKENS = 4096


def leave_if_asked(stop: StopRequest | None, accelerator: Accelerator | None) -> None:
    """Raise Stopped on all processes if any was asked to stop. All must call this together."""
    if stop is not None and accelerator is not None and stop.agreed(accelerator):
        raise Stopped


@contextmanager
def evaluating(model: nn.Module, accelerator: Accelerator | None) -> Iterator[None]:
    """
    Evaluate in the precision in which the model will be used: on the CPU, that of its weights, since bf16 is no faster
    there; elsewhere, that of its training. Meanwhile Accelerate's mixed-precision wrapper of `forward` is removed, also
    because the fast loops of `model/search_loops.py` need the class's own method.
    """
    if accelerator is None:
        yield
        return
    as_it_is = accelerator.device.type == "cpu" and not is_sharded(accelerator)
    wrapped = vars(model).pop("forward", None) if "_original_forward" in vars(model) else None
    try:
        with nullcontext() if as_it_is else accelerator.autocast():
            yield
    finally:
        if wrapped is not None:
            model.forward = wrapped


@torch.no_grad()
def corpus_loss(
    model: nn.Module,
    dataset: Dataset,
    tokens_per_batch: int,
    pad_token_id: int,
    accelerator: Accelerator,
    stop: StopRequest | None = None,
) -> float:
    """
    Cross-entropy per target token of tokenized pairs, in nats, without label smoothing; the processes share the pairs.

    Raises:
        Stopped: a process was asked to stop.
    """
    source_lengths, target_lengths = pair_lengths(dataset)
    batches = plan_batches(source_lengths, target_lengths, tokens_per_batch, None)
    mine = [batch.tolist() for batch in batches[accelerator.process_index :: accelerator.num_processes]]
    rounds, total = -(-len(batches) // accelerator.num_processes), 0.0
    own = len(mine)
    mine += [batches[0].tolist()] * (rounds - own) if is_sharded(accelerator) else []  # their loss is not counted
    loader = iter(make_loader(dataset, mine, PairCollator(pad_token_id)))
    training = model.training
    model.eval()
    try:
        for number in range(rounds):
            leave_if_asked(stop, accelerator)
            batch = next(loader, None)
            if batch is not None:
                batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
                with evaluating(model, accelerator):
                    loss = model(**batch, num_items_in_batch=1, fused_loss=fused_cross_entropy).loss.item()
                total += loss if number < own else 0.0
    finally:
        model.train(training)
    return sum(gather_object([total])) / int(target_lengths.sum())


def translate(
    model: nn.Module,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    sentences: list[str],
    batch_size: int | None = 128,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    accelerator: Accelerator | None = None,
    progress: Callable | None = tqdm,
    stop: StopRequest | None = None,
    **generation,
) -> list[str]:
    """
    Translate sentences, in batches of similar lengths. Several processes share the batches, which do not depend on the
    number of processes, so neither do the translations.

    Args:
        model: not wrapped (see Accelerator.unwrap_model).
        batch_size: the most sentences in a batch, since memory grows with their number too; None: no limit.
        batch_tokens: the most source tokens in a batch, padding included.
        accelerator: splits the batches among its processes; None: this process translates all.
        progress: wraps the range of batches, like tqdm; None: no progress bar.
        stop: checked before and within each batch, if there is an accelerator.
        generation: arguments of `model.generate`.

    Returns:
        The translations, in the order of the sentences; "" for a blank one.

    Raises:
        ValueError: a sentence exceeds learned positions.
        Stopped: a process was asked to stop.
    """
    rank, processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    # Only learned positions limit the source length; others extend beyond max_position_embeddings.
    learned = getattr(model.config, "position_embedding_type", None) == "learned"
    ids = tokenize(source_tokenizer, sentences, model.config.max_position_embeddings if learned else None)
    batches = batches_by_length([len(row) for row in ids], batch_size, batch_tokens)
    mine, rounds = batches[rank::processes], range(-(-len(batches) // processes))
    generation["synced_gpus"] = is_sharded(accelerator)
    if stop is not None:
        generation["stopping_criteria"] = StoppingCriteriaList([StopDecoding(stop)])
    translated = [(index, "") for index, row in enumerate(ids) if not row and rank == 0]
    for number in progress(rounds, desc="translating", leave=False, disable=None) if progress else rounds:
        leave_if_asked(stop, accelerator)
        batch = mine[number] if number < len(mine) else []
        if batch or is_sharded(accelerator):
            with evaluating(model, accelerator):
                sequences, _ = generate_batch(model, [ids[index] for index in batch or batches[0]], **generation)
            if batch:  # for no rows, `batch_decode` returns one text
                texts = target_tokenizer.batch_decode(sequences[: len(batch), 0], skip_special_tokens=True)
                translated += zip(batch, texts, strict=True)
    leave_if_asked(stop, accelerator)
    if processes > 1:
        translated = gather_object(translated)
    return [text for _, text in sorted(translated)]


def score_options(recipe: Recipe) -> dict[str, Any]:
    """The arguments of `metrics.score` that a recipe sets."""
    section = recipe.evaluation
    return {"chosen": section.metric, "also": section.also, "language": recipe.data.target_language}


def score_model(
    recipe: Recipe, names: list[str], splits: list[str], accelerator: Accelerator, **generation
) -> dict[str, dict[str, Any]]:
    """
    Score an existing model (a folder or a name on the Hub), or an ensemble of several, on splits of the recipe's data.
    Nothing is written.

    Args:
        generation: arguments of `model.generate`; for the others, the model's own settings hold.

    Returns:
        For each split the number of sentences, the translations, and their scores as `metrics.score` names them.
    """
    model, *tokenizers = load_together(names)
    model = model.to(accelerator.device)
    section, results = recipe.evaluation, {}
    for split in splits:
        pairs = main_first(accelerator, lambda split=split: load_split(recipe.data, recipe.seed, split))
        sources, references = texts(pairs)
        options = {"batch_size": section.batch_size, "batch_tokens": section.batch_tokens, "accelerator": accelerator}
        with as_user_error(f"{' + '.join(names)}, the {split} split: "):
            translations = translate(model, *tokenizers, sources, **options, **generation)
        texts_to_score = (sources, translations, references)
        scores = on_main(
            accelerator, partial(score, *texts_to_score, **score_options(recipe)), "scoring the translations"
        )
        with evaluating(model, accelerator):
            scores |= alignment_scores(recipe, first_member(model), tokenizers, split, pairs)
        results[split] = {"sentences": len(sources), "translations": translations, **scores}
    return results
