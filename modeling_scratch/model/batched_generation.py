"""Translate sentences in batches of similar length through `generate()`, and score the translations."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .confidence import Confidence
from .text import TextRules, tokenized
from .translations import Translation, Translations


def tokenize(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], *arguments, **options) -> list[list[int]]:
    """The token ids of each sentence by a tokenizer of Transformers, with the further arguments of `text.tokenized`."""

    def encode(texts: list[str]) -> list[list[int]]:
        return tokenizer(texts, truncation=False, verbose=False).input_ids

    return tokenized(encode, sentences, *arguments, **options)


def setting_of(model: PreTrainedModel, generation: dict[str, Any], name: str) -> Any:
    """The value that `generate` uses for a setting: from its arguments, its generation_config or the model's."""
    given = [generation.get(name)]
    given += [getattr(config, name, None) for config in (generation.get("generation_config"), model.generation_config)]
    return next((value for value in given if value is not None), None)


def _length_limit(model: PreTrainedModel, generation: dict[str, Any]) -> dict[str, int]:
    """The setting that ends translations where learned positions end."""
    longest = setting_of(model, generation, "max_new_tokens")
    if longest is None:
        longest = (setting_of(model, generation, "max_length") or 0) - 1  # it counts the start token
    limit = model.config.max_position_embeddings
    is_learned = getattr(model.config, "position_embedding_type", None) == "learned"
    return {"max_new_tokens": limit} if is_learned and longest > limit else {}


def target_lengths(model: PreTrainedModel, sequences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The number of tokens of each output, without the start token and with the end token, and whether it has an end
    token. An output without one reached the maximum length.

    Args:
        sequences: (..., target_length), with the start token, as `generate` returns them.
    """
    ends = model.generation_config.eos_token_id
    ends = torch.tensor([] if ends is None else ends, dtype=sequences.dtype, device=sequences.device)
    is_end = torch.isin(sequences[..., 1:], ends)
    is_whole = is_end.any(dim=-1)
    return (is_end.cumsum(dim=-1) == 0).sum(dim=-1) + is_whole.long(), is_whole


@torch.no_grad()
def generate_batch(
    model: PreTrainedModel, ids: list[list[int]], return_scores: bool | None = False, **generation
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Translate one batch of tokenized sentences, without dropout.

    Args:
        ids: the source tokens of each sentence.
        return_scores: None: if the loops provide them.
        generation: arguments of `model.generate`. The length is limited to what learned positions allow.

    Returns:
        Target tokens, (batch_size, num_return_sequences, target_length), with the decoder's start token; and scores,
        (batch_size, num_return_sequences), or None. A score is the natural logarithm of the translation's probability
        under the model, the end token included. The best translation comes first, except among samples without scores.

    Raises:
        ValueError: scores were asked for, but Transformers' own loops ran, which do not provide them.
    """
    rows = [torch.tensor(row) for row in ids]
    inputs = {
        # Any id would do for padding, since the mask hides it.
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id or 0),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),  # 1: attend
    }
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    generation = generation | _length_limit(model, generation)
    if return_scores is not False:
        generation["return_dict_in_generate"] = True
    if training := model.training:  # changing the mode of all modules takes as long as half a step
        model.eval()
    try:
        output = model.generate(**inputs, **generation)
    finally:
        if training:
            model.train()
    sequences = getattr(output, "sequences", output)  # (batch_size * num_return_sequences, target_length)
    sequences = sequences.reshape(len(ids), -1, sequences.shape[-1])
    scores = None if return_scores is False else getattr(output, "log_probabilities", None)
    if scores is None:
        if return_scores:
            raise ValueError(
                "return_scores: scores come from this project's own search loops, which do not support this model or "
                "these arguments of generate; return_scores=False does without"
            )
        return sequences, None
    scores = scores.view(len(ids), -1)
    if (setting_of(model, generation, "num_beams") or 1) == 1:
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        sequences = sequences.take_along_dim(order[..., None], dim=1)
    return sequences, scores


def with_spare(model: PreTrainedModel, rules: TextRules, generation: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """
    Arguments of `generate` with which a model that writes reserved characters returns all hypotheses of the beam, of
    which `TextRules.best_ranks` prefers those that have the source's; and how many were asked for.
    """
    several = setting_of(model, generation, "num_return_sequences") or 1
    beams = setting_of(model, generation, "num_beams") or 1
    if rules.reserved and beams > several and not setting_of(model, generation, "do_sample"):
        generation = generation | {"num_return_sequences": beams}
    return generation, several


def as_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Sequence[str],
    ids: list[list[int]],
    sequences: torch.Tensor,
    scores: torch.Tensor | None,
    several: int,
    rules: TextRules,
    confidence: Confidence | None,
) -> Translations:
    """
    Of what `generate_batch` returned the `several` best translations of each sentence, best first.

    Args:
        tokenizer: the target's.
        inputs, ids: each sentence as the model reads it, and its tokens.
    """
    lengths, is_whole = (values.tolist() for values in target_lengths(model, sequences))
    rows = sequences.tolist()  # of each sentence, the tokens of each hypothesis
    numbers = torch.zeros(sequences.shape[:2]).tolist() if scores is None else scores.tolist()
    found = []
    for place, read in enumerate(inputs):
        text_of = cache(lambda rank, row=rows[place]: tokenizer.decode(row[rank], skip_special_tokens=True))
        made = []
        for rank in rules.best_ranks(read, len(rows[place]), several, text_of):
            is_cut, length = not is_whole[place][rank], lengths[place][rank]
            translation = Translation(text_of(rank), numbers[place][rank], is_cut, length=length)
            made.append(translation if scores is None else rules.rated(translation, ids[place], confidence))
        found.append(made)
    return found
