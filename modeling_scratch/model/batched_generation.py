"""Sentences in batches of like length through `generate()`: tokens in, tokens and their probabilities out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_BATCH_TOKENS = 4096


class SourceTooLong(ValueError):
    """A sentence has more tokens than the model takes: `index` among the inputs, `length` and `limit` in tokens."""

    def __init__(self, index: int, length: int, limit: int):
        super().__init__(
            f"input {index} has {length} tokens, but the model takes {limit} (max_position_embeddings): nothing is "
            "cut; give it in parts"
        )
        self.index, self.length, self.limit = index, length, limit


def tokenize(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], limit: int | None, first: int = 0
) -> list[list[int]]:
    """
    The tokens of each sentence, without the white space around it; none of one that is blank.

    Args:
        limit: the most tokens that the model takes; None: no bound.
        first: the number of the first sentence, for what errors say.

    Raises:
        ValueError: a sentence is not a string, or not Unicode text.
        SourceTooLong: a sentence has more tokens than `limit`.
    """
    for index, sentence in enumerate(sentences, start=first):
        if not isinstance(sentence, str):
            raise ValueError(f"input {index} is of type {type(sentence).__name__}; it must be a string")
        try:
            sentence.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"input {index} is not Unicode text: {error.reason} at {error.start}") from None
    filled = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    ids: list[list[int]] = [[] for _ in sentences]
    if filled:
        texts = [sentences[index].strip() for index in filled]
        for index, row in zip(filled, tokenizer(texts, truncation=False, verbose=False).input_ids, strict=True):
            if limit is not None and len(row) > limit:
                raise SourceTooLong(first + index, len(row), limit)
            ids[index] = row
    return ids


def batches_by_length(
    lengths: Sequence[int], batch_size: int | None = None, batch_tokens: int | None = None
) -> list[list[int]]:
    """
    Indices in batches of like length, the longest first, so that what does not fit into memory fails at once. What has
    no tokens is in none.

    Args:
        lengths: in tokens.
        batch_size: the most sentences a batch; None: no bound.
        batch_tokens: the most tokens a batch, padding included, unless one sentence is longer; None: no bound.
    """
    batches: list[list[int]] = []
    filled = [index for index, length in enumerate(lengths) if length]
    for index in sorted(filled, key=lambda index: (-lengths[index], index)):
        batch = batches[-1] if batches else []
        longest = lengths[batch[0]] if batch else 0
        many = batch_size is not None and len(batch) == batch_size
        wide = batch_tokens is not None and (len(batch) + 1) * longest > batch_tokens
        if not batch or many or wide:
            batches.append([index])
        else:
            batch.append(index)
    return batches


def setting_of(model: PreTrainedModel, generation: dict[str, Any], name: str) -> Any:
    """What `generate` takes for a setting: the argument, or as the given or the model's generation config has it."""
    given = [generation.get(name)]
    given += [getattr(config, name, None) for config in (generation.get("generation_config"), model.generation_config)]
    return next((value for value in given if value is not None), None)


@torch.no_grad()
def generate_batch(
    model: PreTrainedModel, ids: list[list[int]], return_scores: bool | None = False, **generation
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Translate one batch of tokenized sentences, without dropout.

    Args:
        ids: the source's tokens, a list for each sentence.
        return_scores: None: if there are several translations a sentence.
        generation: for `model.generate`.

    Returns:
        The target's tokens, (batch_size, num_return_sequences, target_length), the decoder's start included; and their
        scores, (batch_size, num_return_sequences), or None. A score is the natural logarithm of the probability that
        the model gives to the translation, its end included, however it was searched for or sampled. Beam search has
        put the best first; what was sampled is put in order here, if there are scores.
    """
    rows = [torch.tensor(row) for row in ids]
    source = {
        # What stands in padding has no effect.
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id or 0),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),  # 1: attend
    }
    source = {name: tensor.to(model.device) for name, tensor in source.items()}
    several = setting_of(model, generation, "num_return_sequences") or 1
    wants_scores = several > 1 if return_scores is None else return_scores
    training = model.training
    if training:
        model.eval()
    try:
        if wants_scores:
            generation = generation | {"return_dict_in_generate": True}
        output = model.generate(**source, **generation)
        sequences = getattr(output, "sequences", output)  # (batch_size * num_return_sequences, target_length)
        scores = None
        if wants_scores:
            scores = getattr(output, "log_probabilities", None)  # as our own search has them
            if scores is None:
                ending = (setting_of(model, generation, name) for name in ("eos_token_id", "pad_token_id"))
                scores = log_probabilities(model, source, sequences, *ending)
            scores = scores.view(len(ids), -1)
    finally:
        if training:
            model.train()
    sequences = sequences.reshape(len(ids), -1, sequences.shape[-1])
    if scores is not None and (setting_of(model, generation, "num_beams") or 1) == 1:
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        sequences = sequences.take_along_dim(order[..., None], dim=1)
    return sequences, scores


def log_probabilities(
    model: PreTrainedModel,
    source: dict[str, torch.Tensor],
    sequences: torch.Tensor,
    eos: int | list[int] | None,
    pad: int | None,
) -> torch.Tensor:
    """
    Natural logarithms of the probabilities of whole translations, (translations,), by forward passes.

    Args:
        source: input_ids and attention_mask, (batch_size, source_length).
        sequences: (translations, target_length), the same number for each source.
        eos, pad: what ends a translation, and what fills it up: of the first what stands after it, and all of the
            second, is not counted.
    """
    targets = sequences[:, 1:]
    ends = torch.isin(targets, torch.tensor([] if eos is None else eos, dtype=targets.dtype, device=targets.device))
    fills = (targets == (-1 if pad is None else pad)) & ~ends
    labels = targets.masked_fill(fills | (ends.cumsum(dim=1) - ends.long() > 0), -100)
    several = len(sequences) // len(source["input_ids"])
    found = []
    for row, target in enumerate(labels):  # one at a time: the logits of all might not fit
        one = {name: value[row // several, None] for name, value in source.items()}
        read = sequences[row, None, :-1]
        found.append(-model(**one, decoder_input_ids=read, labels=target[None], num_items_in_batch=1).loss.float())
    return torch.stack(found)
