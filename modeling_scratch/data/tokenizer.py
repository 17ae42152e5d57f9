"""The tokenizers of a model, trained or adopted, and the token ids of sentence pairs."""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from datasets import Dataset
from datasets.fingerprint import Hasher
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from ..errors import UserError, as_user_error
from ..loading import NO_REMOTE_CODE
from ..model.kept_words import RESERVED
from ..model.text import INVISIBLE, SEPARATOR, has_whole_symbols, is_panic
from ..model_names import loading
from ..recipe.schema import FEATURES, SOURCE, TARGET, TokenizerKind
from .copied_words import Copies
from .sources import SEE_REPORT, whole_sources

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # ids 0 to 3
MANY_DROPPED = 0.1  # if a larger share of pairs is dropped, a limit may be too low: warn
# The most bytes of a word that the trainer sees at once, since its time grows with the square of their number: a word
# of 100,000 combining marks would take minutes. No real word is longer.
_LONGEST_WORD = 1000
_RESERVED = re.compile(f"[{RESERVED}]")
RESERVES: tuple[TokenizerKind, ...] = ("bpe", "characters", "decomposed")  # kinds that can have reserved characters


def end_with_eos(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer append eos to every sequence, source or target."""
    eos = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.eos_token_id)]
    )


def train_tokenizer(
    sentences: Iterator[list[str]],
    vocab_size: int,
    kind: TokenizerKind = "bpe",
    pattern: str | None = None,
    reserves: bool = False,
) -> PreTrainedTokenizerFast:
    """
    Train a tokenizer of a kind (see `TokenizerSection`).

    Args:
        sentences: batches of training sentences, read once.
        vocab_size: the most tokens, special ones included.
        pattern: of kind "pattern", a regular expression that matches a token.
        reserves: have a token for each reserved character (see `RESERVED`), of a kind in `RESERVES`.

    Raises:
        UserError: the pattern is not a regular expression.
    """
    merges = _reserved_merges() if reserves and kind == "bpe" else []
    reserved = ["".join(merge) for merge in merges] or list(RESERVED if reserves else "")
    if reserves:  # these are not learned from texts, beside others
        sentences = ([_RESERVED.sub(" ", text) for text in batch] for batch in sentences)
    learned = vocab_size - len(reserved)
    trained = _train_bpe(sentences, learned) if kind == "bpe" else _train_symbols(sentences, learned, kind, pattern)
    if reserves:
        _put_first(reserved, merges, trained)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=trained, **SPECIAL_TOKENS, clean_up_tokenization_spaces=False, split_special_tokens=True
    )
    end_with_eos(wrapped)
    if reserves:
        wrapped.init_kwargs["reserved"] = len(RESERVED)
    return wrapped


def _reserved_merges() -> list[tuple[str, str]]:
    """The merges of byte-level BPE that make each reserved character, of four bytes, one token."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = [byte_level.pre_tokenize_str(character)[0][0] for character in RESERVED]
    first = spelled[0]
    return [(first[0], first[1]), (first[:2], first[2]), *((word[:3], word[3]) for word in spelled)]


def _put_first(reserved: list[str], merges: list[tuple[str, str]], tokenizer: Tokenizer) -> None:
    """
    Put tokens, and the merges of BPE that make them, before those that a tokenizer has learned. They are not added
    tokens: the text beside these is normalized piece by piece, and each piece would get a space at its beginning.
    """
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token in sorted(model["vocab"], key=model["vocab"].__getitem__) if token not in reserved]
    place = len(SPECIAL_TOKENS) + (len(pre_tokenizers.ByteLevel.alphabet()) if merges else 0)
    tokens[place:place] = reserved
    vocabulary, unknown = {token: number for number, token in enumerate(tokens)}, SPECIAL_TOKENS["unk_token"]
    if merges:
        learned = [merge for pair in model["merges"] if (merge := tuple(pair)) not in merges]
        tokenizer.model = models.BPE(vocabulary, [*merges, *learned], unk_token=unknown)
    else:
        tokenizer.model = models.WordLevel(vocabulary, unknown)


def _train_symbols(
    sentences: Iterator[list[str]], vocab_size: int, kind: TokenizerKind, pattern: str | None
) -> Tokenizer:
    """
    A vocabulary of the most frequent symbols. A feature is one symbol (see `with_features`). A symbol that is not in
    the vocabulary becomes the unknown token, which decoding drops. Otherwise, text without `INVISIBLE` characters in
    NFC (for the kind "decomposed", in NFD) comes back exactly, unless one of its symbols spells a special token.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS["unk_token"]))
    form = normalizers.NFD() if kind == "decomposed" else normalizers.NFC()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(INVISIBLE.pattern), ""), form])
    symbol = {"characters": r"[\s\S]", "decomposed": r"[\s\S]", "words": r"\S+"}.get(kind, pattern or "")
    # A feature stands at the beginning or after another one. The look-behind says so: without it, the regular
    # expression would look for a separator from every character of a text.
    with as_user_error("tokenizer.pattern is not a regular expression, or ends in a comment: "):
        Regex(symbol)
        symbols = Regex(rf"(?<![^{SEPARATOR}])[^{SEPARATOR}]+{SEPARATOR}|(?:{symbol})")
    if kind == "words":  # decoding joins them with spaces
        tokenizer.pre_tokenizer = pre_tokenizers.Split(symbols, "removed", invert=True)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(symbols, "isolated")
        tokenizer.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS.values()), show_progress=False
    )
    with _explained_panic():
        tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


@contextmanager
def _explained_panic() -> Iterator[None]:
    """Raise UserError if a regular expression takes too many steps on a text."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise UserError(
            f"tokenizer.pattern gives up on a text ({error}); write it without repetitions of repetitions, such as "
            "(a+)+, and without alternatives that begin alike"
        ) from None


def _train_bpe(sentences: Iterator[list[str]], vocab_size: int) -> Tokenizer:
    """
    Byte-level BPE (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909).

    Text is normalized to NFC, without `INVISIBLE` characters. A space is put before the first word, so that a word has
    the same tokens anywhere in a sentence, and removed when decoding, so that normalized text comes back exactly. The
    vocabulary holds all 256 bytes, so no character is unknown. Text that spells a special token is treated as text.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS["unk_token"]))
    visible = normalizers.Replace(Regex(INVISIBLE.pattern), "")
    tokenizer.normalizer = normalizers.Sequence([visible, normalizers.NFC(), normalizers.Prepend(" ")])
    words, pieces = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.FixedLength(_LONGEST_WORD)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pieces])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.pre_tokenizer = words
    return tokenizer


def _load(name: str) -> PreTrainedTokenizerBase:
    try:
        with loading(name, "tokenizer"):
            if not Path(name).exists() and name in tiktoken.list_encoding_names():
                return from_tiktoken(tiktoken.get_encoding(name))
            return AutoTokenizer.from_pretrained(name, **NO_REMOTE_CODE)
    except UserError as error:
        raise UserError(f"tokenizer.existing: {error}") from error


class _RanksConverter(TikTokenConverter):
    """Converts an encoding in memory instead of a file, and keeps the ids of special tokens."""

    @staticmethod
    def load_tiktoken_bpe(encoding: Any) -> dict[bytes, int]:
        return encoding._mergeable_ranks

    def extract_vocab_merges_from_model(self, encoding: Any):
        vocabulary, merges = super().extract_vocab_merges_from_model(encoding)
        vocabulary |= encoding._special_tokens
        # cl100k_base has gaps between its ids, but the tokenizers library numbers added tokens consecutively. Fill the
        # gaps with names that never match: bytes are written without spaces.
        gaps = set(range(max(vocabulary.values()))) - set(vocabulary.values())
        return vocabulary | {f"unused {token_id}": token_id for token_id in gaps}, merges


def from_tiktoken(encoding: tiktoken.Encoding) -> PreTrainedTokenizerFast:
    """A tiktoken encoding, such as cl100k_base, as a Transformers tokenizer with the same ids."""
    converter = _RanksConverter(encoding, pattern=encoding._pat_str, extra_special_tokens=encoding._special_tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=converter.converted(), clean_up_tokenization_spaces=False, split_special_tokens=True
    )


def adopt_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """
    An existing tokenizer, by folder, Hub name or tiktoken encoding, with a pad token that is neither bos nor eos, and
    eos at the end of every sequence.

    Raises:
        UserError: it cannot be loaded; pad is the same token as bos or eos; a missing special token cannot be added; or
            it does not end sequences with eos and cannot be made to.
    """
    tokenizer = _load(name)
    if tokenizer.is_fast:
        reserved = tokenizer.init_kwargs.get("reserved", 0)
        # Loaded as their own class, tokenizers of BERT, GPT-NeoX and others replace the ending that is set below.
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer.backend_tokenizer,
            clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
            split_special_tokens=tokenizer.split_special_tokens,
            **tokenizer.special_tokens_map,
        )
        tokenizer.init_kwargs |= {"reserved": reserved} if reserved else {}
    vocabulary = tokenizer.get_vocab()
    needed = ("pad_token", "bos_token", "eos_token")
    missing: dict[str, Any] = {role: SPECIAL_TOKENS[role] for role in needed if getattr(tokenizer, role) is None}
    for role, token in missing.items():
        if token in vocabulary:
            raise UserError(
                f"tokenizer.existing: {name!r} has no {role}, and {token!r} is already a token (id "
                f"{vocabulary[token]}); set its {role} and save it to a folder"
            )
    if missing:
        tokenizer.add_special_tokens(missing)
        logger.info(f"tokenizer: added {', '.join(missing.values())} to {name!r} as new tokens")
    pad = tokenizer.pad_token_id
    for role, token_id in (("eos_token", tokenizer.eos_token_id), ("bos_token", tokenizer.bos_token_id)):
        if pad == token_id:
            raise UserError(
                f"tokenizer.existing: pad_token and {role} of {name!r} are the same token (id {pad}), so padding "
                "cannot be told from text; set a separate pad_token and save the tokenizer to a folder"
            )
    if tokenizer("a").input_ids[-1] != tokenizer.eos_token_id:
        if not tokenizer.is_fast:
            raise UserError(f"tokenizer.existing: {name!r} does not end sequences with {tokenizer.eos_token!r}")
        end_with_eos(tokenizer)
    return tokenizer


@dataclass
class PairTokenizer:
    """
    Tokenizes pairs, and drops those that are empty or too long.

    Args:
        cleans_sources: clean sources, as translating does, and remove invisible characters from targets.
        copies: puts reserved characters in place of kept words; None: all stay as text.
    """

    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    max_source_tokens: int
    max_target_tokens: int
    cleans_sources: bool = True
    copies: Copies | None = None

    def __call__(
        self,
        pairs: Mapping[str, Sequence[str]],
        indices: Sequence[int],
        places: Sequence[Sequence[int]] | None = None,
    ) -> dict[str, list]:
        """
        Args:
            pairs: the columns `source` and `target`, and `features` if the data have them.
            places: for each pair the numbers, such as epoch and row, that determine its reserved characters; None:
                `indices`.

        Returns:
            `input_ids` and `labels`, both ending in eos, `source_length`, `target_length`, and the `index` of each pair
            that is kept, from `indices`.
        """
        if self.copies is not None:
            pairs = self.copies(pairs, places or [(index,) for index in indices])
        sources, targets = list(pairs[SOURCE]), list(pairs[TARGET])
        if self.cleans_sources:
            sources, targets = whole_sources(pairs), [INVISIBLE.sub("", text).strip() for text in targets]
        # text_target, since an OPUS-MT tokenizer has a SentencePiece model for each side.
        with _explained_panic():
            inputs = self.source_tokenizer(text=sources, add_special_tokens=True).input_ids
            labels = self.target_tokenizer(text_target=targets, add_special_tokens=True).input_ids
        kept = [
            row
            for row, (source_ids, target_ids) in enumerate(zip(inputs, labels, strict=True))
            if sources[row] and len(source_ids) <= self.max_source_tokens
            if targets[row] and len(target_ids) <= self.max_target_tokens
        ]
        return {
            "input_ids": [inputs[row] for row in kept],
            "labels": [labels[row] for row in kept],
            "source_length": [len(inputs[row]) for row in kept],
            "target_length": [len(labels[row]) for row in kept],
            "index": [indices[row] for row in kept],
        }

    @property
    def limits(self) -> str:
        return f"{self.max_source_tokens} source or {self.max_target_tokens} target tokens"

    def key(self) -> str:
        """A cache key for its output: the hash of a tokenizer object differs from process to process."""
        tokenizers = [
            side.backend_tokenizer.to_str() if side.is_fast else repr(sorted(side.get_vocab().items()))
            for side in (self.source_tokenizer, self.target_tokenizer)
        ]
        copies = [self.copies.key()] if self.copies else []
        return Hasher.hash([tokenizers, self.limits, self.cleans_sources and INVISIBLE.pattern, *copies])


def tokenize_pairs(dataset: Dataset, tokenizer: PairTokenizer, split: str, num_workers: int = 0) -> Dataset:
    """
    Tokenize a split, cached by the datasets library, and log how many pairs were dropped.

    Args:
        num_workers: processes that share the work; 0 or 1: this process does it.

    Raises:
        UserError: no pair is left.
    """

    def tokenize(batch: dict[str, list[str]], indices: list[int]) -> dict[str, list]:
        return tokenizer(batch, indices)

    tokenized = dataset.map(
        tokenize,
        with_indices=True,
        batched=True,
        remove_columns=dataset.column_names,
        new_fingerprint=Hasher.hash([dataset._fingerprint, tokenizer.key(), "tokenize each side"]),
        desc=f"tokenizing {split}",
        num_proc=num_workers if num_workers > 1 and len(dataset) >= 1000 * num_workers else None,
    )
    dropped = len(dataset) - len(tokenized)
    if dropped:
        share = dropped / len(dataset)
        logger.log(
            logging.WARNING if share > MANY_DROPPED else logging.INFO,
            f"data: dropped {dropped:,} of {len(dataset):,} {split} pairs ({share:.0%}) that were empty or longer than "
            f"{tokenizer.limits}{SEE_REPORT if split == 'train' and share > MANY_DROPPED else ''}",
        )
    if len(tokenized) == 0:
        raise UserError(
            f"all {len(dataset):,} {split} pairs were dropped as empty or longer than data.max_source_tokens "
            f"({tokenizer.max_source_tokens}) or data.max_target_tokens ({tokenizer.max_target_tokens})"
        )
    _report_unknown(tokenized, tokenizer, split)
    return tokenized


def _report_unknown(tokenized: Dataset, tokenizer: PairTokenizer, split: str) -> None:
    """Log how many tokens of a split are not in a vocabulary of whole symbols."""
    sides = (("source", "input_ids", tokenizer.source_tokenizer), ("target", "labels", tokenizer.target_tokenizer))
    for side, column, vocabulary in sides:
        if not has_whole_symbols(vocabulary):
            continue
        ids = tokenized.select_columns([column]).with_format("arrow")[:].column(column).combine_chunks().flatten()
        # Each text ends in a special token of its own.
        if unknown := int(np.isin(ids.to_numpy(), vocabulary.all_special_ids).sum()) - len(tokenized):
            logger.warning(
                f"data: {unknown:,} of {len(ids):,} {side} tokens of the {split} pairs are lost: they spell a special "
                f"token, or the vocabulary of {len(vocabulary):,} tokens lacks them (see tokenizer.vocab_size)"
            )


def pair_lengths(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The source and target lengths of tokenized pairs, eos included: two arrays of shape (pairs,)."""
    table = dataset.select_columns(["source_length", "target_length"]).with_format("numpy")
    return np.asarray(table["source_length"][:]), np.asarray(table["target_length"][:])


def texts(dataset: Dataset) -> tuple[list[str], list[str]]:
    """The sources and the targets of pairs that are not tokenized yet."""
    return dataset[SOURCE][:], dataset[TARGET][:]


def features_of(dataset: Dataset) -> list[str] | None:
    """The features of pairs that are not tokenized yet; None if the data have none."""
    return dataset[FEATURES][:] if FEATURES in dataset.column_names else None
