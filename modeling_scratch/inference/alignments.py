"""Word alignments from cross-attention: which words of a sentence each word of its translation comes from."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.corpus import Links
from ..model.text import DEFAULT_BATCH_TOKENS, batches_by_length, clean

Heads = list[list[int]]  # [layer, head] of each, from 0


@contextmanager
def returning_weights(model: PreTrainedModel) -> Iterator[None]:
    """A context in which a model returns attention weights, without dropout."""
    training, implementation = model.training, model.config._attn_implementation
    model.eval()
    model.set_attn_implementation("eager")  # the implementation that returns weights
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)
        model.train(training)


class Aligner:
    """
    Aligns the words of sentences with those of their translations by cross-attention, in one teacher-forced pass. It
    averages the heads in the generation config's `alignment_heads`, as Whisper names it, or all heads if it has none.

    Args:
        model: a translator, but not an ensemble. The pass uses eager attention, whichever implementation is set.
        source_tokenizer, target_tokenizer: one object if they are shared.

    Raises:
        ValueError: `alignment_heads` names heads that the model lacks.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
    ):
        self.model, self.source_tokenizer, self.target_tokenizer = model, source_tokenizer, target_tokenizer
        self.heads = alignment_heads(model)

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links]:
        """The links of each pair; see `links_of`."""
        return [links_of(weights) for weights in self.weights(sources, targets)]

    def weights(self, sources: Sequence[str], targets: Sequence[str]) -> list[torch.Tensor]:
        """How much the target words of each pair attend to its source words; see `average_heads`."""
        return self._map(sources, targets, lambda weights: average_heads(weights, self.heads))

    def weights_by_head(self, sources: Sequence[str], targets: Sequence[str]) -> list[torch.Tensor]:
        """
        The cross-attention of each pair, summed over each word's tokens, (layers, heads, target words, source words). A
        target token's attention is that of the step that predicts it. End tokens and punctuation at a word's edges are
        left out: a comma depends on the clause after it, not on its word. Target words beyond the last learned position
        have zeros, and thus no links.
        """
        return self._map(sources, targets, lambda weights: weights)

    @torch.no_grad()
    def _map(
        self, sources: Sequence[str], targets: Sequence[str], reduce: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor]:
        """`weights_by_head`, each pair's reduced as soon as computed, since those of all pairs may take gigabytes."""
        read = [_tokenize(self.source_tokenizer, text) for text in sources]
        written = [_tokenize(self.target_tokenizer, text, is_target=True) for text in targets]
        if getattr(self.model.config, "position_embedding_type", None) == "learned":  # other kinds have no limit
            limit = self.model.config.max_position_embeddings
            written = [_Text(text.ids[:limit], text.words, text.word_of[:limit]) for text in written]
        pairs, shape = list(zip(read, written, strict=True)), _shape(self.model)
        lengths = [len(x.ids) + len(y.ids) if x.ids and y.ids else 0 for x, y in pairs]
        found: list[torch.Tensor | None] = [None] * len(pairs)
        with returning_weights(self.model):
            for batch in batches_by_length(lengths, batch_tokens=DEFAULT_BATCH_TOKENS):
                for index, weights in zip(batch, self._attend([pairs[index] for index in batch]), strict=True):
                    found[index] = reduce(weights)
        return [
            reduce(torch.zeros(*shape, len(y.words), len(x.words))) if weights is None else weights
            for weights, (x, y) in zip(found, pairs, strict=True)
        ]

    def _attend(self, pairs: list[tuple["_Text", "_Text"]]) -> Iterator[torch.Tensor]:
        """`weights_by_head` for a batch of tokenized pairs."""
        start = self.model.generation_config.decoder_start_token_id
        start = self.model.config.decoder_start_token_id if start is None else start
        sources = [torch.tensor(source.ids) for source, _ in pairs]
        inputs = {
            "input_ids": sources,
            "attention_mask": [torch.ones_like(ids) for ids in sources],  # 1: attend
            "decoder_input_ids": [torch.tensor([start, *target.ids[:-1]]) for _, target in pairs],
        }
        # Any id would do for padding: the mask hides it in sources, and in targets no step sees a later token.
        padded = {name: pad_sequence(rows, batch_first=True).to(self.model.device) for name, rows in inputs.items()}
        outputs = self.model(**padded, output_attentions=True, use_cache=False)
        # (layers, batch_size, heads, target_length, source_length)
        attention = torch.stack([layer.float().cpu() for layer in outputs.cross_attentions])
        for row, (source, target) in enumerate(pairs):
            of_tokens = attention[:, row, :, : len(target.ids), : len(source.ids)]
            yield target.sums().T @ of_tokens @ source.sums()


@dataclass
class _Text:
    """A text's tokens and words, and the word of each token (-1: none)."""

    ids: list[int]
    words: list[str]
    word_of: list[int]

    def sums(self) -> torch.Tensor:
        """The matrix that sums over the tokens of each word, (tokens, words)."""
        return (torch.tensor(self.word_of)[:, None] == torch.arange(len(self.words))).float()


def _tokenize(tokenizer: PreTrainedTokenizerBase, text: str, is_target: bool = False) -> _Text:
    text = text.strip() if is_target else clean(text)
    words = text.split()
    if not words:
        return _Text([], [], [])
    if tokenizer.is_fast:
        encoded, word_at = tokenizer(text, return_offsets_mapping=True, verbose=False), _words_of_characters(text)
        # By its last character: a token may begin with a space.
        word_of = [word_at[end - 1] if end > start else -1 for start, end in encoded.offset_mapping]
        return _Text(encoded.input_ids, words, word_of)
    # Slow tokenizers have no offsets, but give the same tokens word by word: SentencePiece splits at spaces first.
    texts = {"text_target" if is_target else "text": words}
    pieces = tokenizer(**texts, add_special_tokens=False).input_ids
    ids, word_of = [], []
    for index, piece in enumerate(pieces):
        has_letters = [any(map(str.isalnum, token)) for token in tokenizer.convert_ids_to_tokens(piece)]
        word_of += [index if has_some or not any(has_letters) else -1 for has_some in has_letters]
        ids += piece
    return _Text([*ids, tokenizer.eos_token_id], words, [*word_of, -1])


def _words_of_characters(text: str) -> list[int]:
    """
    The word of each character, and of the space before it, which may be a token; -1 for other spaces, and for
    punctuation at the edges of a word that has letters.
    """
    found = [-1] * len(text)
    for index, word in enumerate(re.finditer(r"\S+", text)):
        inner = re.search(r"\w(.*\w)?", word[0]) or re.search(".+", word[0])
        first, end = word.start() + inner.start(), word.start() + inner.end()
        first -= first > 0 and text[first - 1].isspace()
        found[first:end] = [index] * (end - first)
    return found


def _shape(model: PreTrainedModel) -> tuple[int, int]:
    """The number of a model's decoder layers, and of heads in each."""
    return model.config.decoder_layers, model.config.decoder_attention_heads


def alignment_heads(model: PreTrainedModel) -> Heads | None:
    """The heads that a model's generation config names for alignments, if any. ValueError if the model lacks one."""
    heads, shape = getattr(model.generation_config, "alignment_heads", None), _shape(model)
    if heads is None:
        return None
    try:
        known = bool(heads) and all(0 <= layer < shape[0] and 0 <= head < shape[1] for layer, head in heads)
    except (TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(
            f"alignment_heads is {heads!r}; it must be a list of [layer, head], from 0, of {shape[0]} decoder layers "
            f"with {shape[1]} heads each"
        )
    return heads


def average_heads(weights: torch.Tensor, heads: Heads | None) -> torch.Tensor:
    """
    The mean over heads; None: all of them.

    Args:
        weights: as `Aligner.weights_by_head` returns them for a pair.

    Returns:
        (target words, source words). Rows sum to 1, or to 0 where no word is attended to.
    """
    chosen = weights.flatten(0, 1) if heads is None else torch.stack([weights[layer, head] for layer, head in heads])
    total = chosen.sum(dim=0)
    return total / total.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(total.dtype).tiny)


def links_of(weights: torch.Tensor) -> Links:
    """
    Each target word with the source word that it attends to most, and each source word with the target word that
    attends to it most; a word may thus have several links.

    Args:
        weights: (target words, source words).
    """
    if not weights.numel():
        return []
    links = {(source, target) for target, source in enumerate(weights.argmax(dim=1).tolist())}
    links |= set(enumerate(weights.argmax(dim=0).tolist()))
    return sorted((source, target) for source, target in links if weights[target, source] > 0)


def pharaoh(links: Links) -> str:
    """Links as fast_align and Marian print them, SOURCE-TARGET: `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in links)


def alignment_error_rate(found: Sequence[Links], sure: Sequence[Links]) -> float:
    """
    The alignment error rate of a corpus, 1 - 2 |A & S| / (|A| + |S|), in percent: that of Och and Ney (2003,
    https://aclanthology.org/J03-1002) for gold links that are all sure.

    Args:
        found: A, the links of each pair.
        sure: S, those that must be there.
    """
    right = total = 0
    for links, must in zip(found, map(set, sure), strict=True):
        right += 2 * len(must & set(links))
        total += len(links) + len(must)
    return 100 * (1 - right / total) if total else 0.0


def choose_heads(weights: Sequence[torch.Tensor], sure: Sequence[Links]) -> tuple[Heads | None, float]:
    """
    The heads with the lowest alignment error rate, and that rate: a single head, all of a layer, or all (None).

    Args:
        weights: as `Aligner.weights_by_head` returns them.
        sure: the gold links of each pair.
    """
    layers, heads = weights[0].shape[:2]
    by_layer = [[[layer, head] for head in range(heads)] for layer in range(layers)]
    candidates = [None, *by_layer, *([head] for layer in by_layer for head in layer)]
    rates = [alignment_error_rate([links_of(average_heads(pair, c)) for pair in weights], sure) for c in candidates]
    best = rates.index(min(rates))
    return candidates[best], rates[best]
