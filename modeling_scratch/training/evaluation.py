"""The loss of a model, its translations, and the scores of a model that exists."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList

from ..data.batching import PairCollator, make_loader, plan_batches
from ..data.sources import load_pairs
from ..data.tokenization import pair_lengths, texts
from ..errors import Stopped
from ..loading import load_tokenizers, load_translator
from ..metrics import score
from ..model.batched_generation import DEFAULT_BATCH_TOKENS, batches_by_length, generate_batch, tokenize
from ..recipe.schema import Recipe
from ..runs.processes import main_first, on_main
from ..runs.stopping import StopDecoding, StopRequest
from .sharding import is_sharded

# In a batch whose loss is evaluated, at most: a global batch of many GPUs does not fit on one.
EVALUATION_TOKENS = 4096


def leave_if_asked(stop: StopRequest | None, accelerator: Accelerator | None) -> None:
    """Raise Stopped on all processes if any was asked to stop. All must call this together."""
    if stop is not None and accelerator is not None and stop.agreed(accelerator):
        raise Stopped


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
    Cross-entropy a target token of tokenized pairs, not smoothed, in nats; each pair on one of the processes.

    Raises:
        Stopped: a process was asked to stop.
    """
    source_lengths, target_lengths = pair_lengths(dataset)
    batches = plan_batches(source_lengths, target_lengths, tokens_per_batch, None)
    mine = [batch.tolist() for batch in batches[accelerator.process_index :: accelerator.num_processes]]
    rounds, total = -(-len(batches) // accelerator.num_processes), 0.0
    own = len(mine)
    mine += [batches[0].tolist()] * (rounds - own) if is_sharded(accelerator) else []  # whose loss is not counted
    loader = iter(make_loader(dataset, mine, PairCollator(pad_token_id)))
    training = model.training
    model.eval()
    try:
        for number in range(rounds):
            leave_if_asked(stop, accelerator)
            batch = next(loader, None)
            if batch is not None:
                batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
                with accelerator.autocast():
                    loss = model(**batch, num_items_in_batch=1, skip_logits=True).loss.item()
                total += loss if number < own else 0.0
    finally:
        model.train(training)
    return sum(gather_object([total])) / int(target_lengths.sum())


@contextmanager
def _own_forward(model: nn.Module, accelerator: Accelerator | None) -> Iterator[None]:
    """
    For mixed precision Accelerate gives a model's instance a forward of its own, under autocast. To have it all under
    autocast comes to the same, and keeps the faster loops of `decoding`, which know the class's forward alone.
    """
    if accelerator is None or "_original_forward" not in vars(model):
        yield
        return
    forward = vars(model).pop("forward")
    try:
        with accelerator.autocast():
            yield
    finally:
        model.forward = forward


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
    Translate sentences, in batches of like length. With several processes each batch is translated by one of them, and
    each sentence is in one batch: the batches, so the translations, do not depend on how many there are.

    Args:
        model: not wrapped (see Accelerator.unwrap_model).
        batch_size: the most sentences a batch; None: no bound. (Memory grows with their number, too.)
        batch_tokens: the most source tokens a batch, padding included.
        accelerator: splits the batches among its processes; None: all here.
        progress: wraps the numbers of this process's batches; None: silent.
        stop: asked before each batch and within it, where there is an accelerator.
        generation: for `model.generate`.

    Returns:
        The translations in the order of the sentences; of a blank one "".

    Raises:
        SourceTooLong: a sentence is longer than learned positions.
        Stopped: a process was asked to stop.
    """
    rank, processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    # Longer sources than the config plans for are scored as they are, where positions extend so far.
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
            with _own_forward(model, accelerator):
                sequences, _ = generate_batch(model, [ids[index] for index in batch or batches[0]], **generation)
            if batch:  # of no rows `batch_decode` makes one text
                texts = target_tokenizer.batch_decode(sequences[: len(batch), 0], skip_special_tokens=True)
                translated += zip(batch, texts, strict=True)
    leave_if_asked(stop, accelerator)
    if processes > 1:
        translated = gather_object(translated)
    return [text for _, text in sorted(translated)]


def score_model(recipe: Recipe, name: str, splits: list[str], accelerator: Accelerator) -> dict[str, dict[str, Any]]:
    """
    Score an existing model, a folder or a name on the Hub, on splits of the recipe's data. Nothing is written.

    Returns:
        For each split the number of sentences, the translations, and their scores as `metrics.score` names them.
    """
    tokenizers = load_tokenizers(name)
    model = load_translator(name).to(accelerator.device)
    section, results = recipe.evaluation, {}
    for split in splits:
        only = None if split == "validation" else split  # validation pairs may have to be held out of training
        pairs = main_first(accelerator, lambda only=only: load_pairs(recipe.data, recipe.seed, only))[split]
        sources, references = texts(pairs)
        options = {"batch_size": section.batch_size, "batch_tokens": section.batch_tokens, "accelerator": accelerator}
        with accelerator.autocast():
            translations = translate(model, *tokenizers, sources, **options)
        texts_to_score = (sources, translations, references)
        scores = on_main(accelerator, lambda given=texts_to_score: score(*given, chosen=section.metric))
        results[split] = {"sentences": len(sources), "translations": translations, **scores}
    return results
