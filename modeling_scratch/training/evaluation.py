"""Translate with a model and score its translations, during training or of an existing model."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList

from ..data.sources import load_split
from ..data.tokenization import texts
from ..ensemble import first_member, load_together
from ..errors import Stopped, as_user_error
from ..metrics import score
from ..model.batched_generation import DEFAULT_BATCH_TOKENS, batches_by_length, generate_batch, tokenize
from ..paragraphs import says_something
from ..recipe.schema import Recipe
from ..runs.processes import main_first, on_main
from ..runs.stopping import StopDecoding, StopRequest
from .alignment_scores import alignment_scores
from .sharding import is_sharded


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


def translate(
    model: nn.Module,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    sentences: list[str],
    batch_size: int = 128,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    accelerator: Accelerator | None = None,
    stop: StopRequest | None = None,
    **generation,
) -> list[str]:
    """
    Translate sentences, in batches of similar lengths. Several processes share the batches, which do not depend on the
    number of processes, so neither do the translations.

    Args:
        model: not wrapped (see Accelerator.unwrap_model).
        batch_size: the most sentences in a batch, since memory grows with their number too.
        batch_tokens: the most source tokens in a batch, padding included.
        accelerator: splits the batches among its processes, and shows a progress bar on the main process's terminal;
            None: this process translates all.
        stop: once made, ends `generate` at its next token.
        generation: arguments of `model.generate`.

    Returns:
        The translations, in the order of the sentences; what says nothing stays as it is, as in commands.

    Raises:
        ValueError: a sentence exceeds learned positions.
        Stopped: a process was asked to stop. Without an accelerator nothing is raised, and translations are incomplete.
    """
    rank, processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    # Only learned positions limit the source length; others extend beyond max_position_embeddings.
    learned = getattr(model.config, "position_embedding_type", None) == "learned"
    said = [sentence if says_something(sentence) else "" for sentence in sentences]
    ids = tokenize(source_tokenizer, said, model.config.max_position_embeddings if learned else None)
    batches = batches_by_length([len(row) for row in ids], batch_size, batch_tokens)
    mine, rounds = batches[rank::processes], range(-(-len(batches) // processes))
    generation["synced_gpus"] = is_sharded(accelerator)
    if stop is not None:
        generation["stopping_criteria"] = StoppingCriteriaList([StopDecoding(stop)])
    translated = [(index, sentences[index].strip()) for index, row in enumerate(ids) if not row and rank == 0]
    hidden = None if accelerator is not None and accelerator.is_main_process else True  # None: shown on a terminal
    for number in tqdm(rounds, desc="translating", leave=False, disable=hidden):
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


def translate_and_score(
    recipe: Recipe,
    model: nn.Module,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    pairs: Dataset,
    accelerator: Accelerator,
    explained: AbstractContextManager[None],
    final: bool = True,
    **options,
) -> tuple[list[str], dict[str, Any]]:
    """
    Translate the sources of pairs and score their translations, as a recipe's evaluation section says.

    Args:
        explained: a context for the translating alone, which explains its errors.
        final: include what `metrics.score` leaves out during training.
        options: of `translate`, whose errors these are too.

    Returns:
        The translations; and their number, `sentences`, with their scores as `metrics.score` names them.
    """
    sources, references = texts(pairs)
    section = recipe.evaluation
    options |= section.batch_limits() | {"accelerator": accelerator}
    with explained:
        translations = translate(model, *tokenizers, sources, **options)
    asked = {"chosen": section.metric, "also": section.also, "language": recipe.data.target_language}
    score_them = partial(score, sources, translations, references, final, **asked)
    scores = on_main(accelerator, score_them, "scoring the translations")
    return translations, {"sentences": len(sources), **scores}


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
    model, results = model.to(accelerator.device), {}
    for split in splits:
        pairs = main_first(accelerator, lambda split=split: load_split(recipe.data, recipe.seed, split))
        explained = as_user_error(f"{' + '.join(names)}, the {split} split: ", ValueError)
        given = (recipe, model, tokenizers, pairs, accelerator, explained)
        translations, scores = translate_and_score(*given, **generation)
        with evaluating(model, accelerator):
            scores |= alignment_scores(recipe, first_member(model), tokenizers, split, pairs)
        results[split] = {"translations": translations, **scores}
    return results
