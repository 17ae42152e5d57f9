"""Train a byte-level BPE tokenizer, or adopt an existing one."""

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import tiktoken
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from ..errors import UserError
from ..loading import NO_REMOTE_CODE, loading
from ..model.batched_generation import INVISIBLE

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # ids 0 to 3
_READ_ROWS = 1000
# The most bytes of a word that the trainer sees in one piece, since its time grows with the square of their number: a
# word of 100,000 combining marks would take minutes. No word of a language is longer.
_LONGEST_WORD = 1000


def end_with_eos(tokenizer: PreTrainedTokenizerFast) -> None:
    """Make a tokenizer append eos to every sequence, source or target."""
    eos = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.eos_token_id)]
    )


def train_tokenizer(sentences: Iterator[list[str]], vocab_size: int) -> PreTrainedTokenizerFast:
    """
    Train a byte-level BPE tokenizer (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909).

    Text is normalized to NFC, without `INVISIBLE` characters. A space is put before the first word, so that a word has
    the same tokens anywhere in a sentence, and removed when decoding, so that normalized text comes back exactly. The
    vocabulary holds all 256 bytes, so no character is unknown. Text that spells a special token is treated as text.

    Args:
        sentences: batches of training sentences, read once.
        vocab_size: the most tokens, special ones included.
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
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **SPECIAL_TOKENS, clean_up_tokenization_spaces=False, split_special_tokens=True
    )
    end_with_eos(wrapped)
    return wrapped


def sample_sentences(dataset: Dataset, columns: list[str], limit: int, seed: int) -> tuple[Iterator[list[str]], int]:
    """
    The sentences of some columns, in bounded memory: all of them, or those of a seeded sample of rows if there are more
    than `limit`. Returns batches, and the number of sentences.
    """
    rows = max(1, limit // len(columns))
    if len(dataset) > rows:
        logger.info(f"tokenizer: training on a sample of {rows:,} of {len(dataset):,} pairs (seed {seed})")
        dataset = dataset.select(sorted(random.Random(seed).sample(range(len(dataset)), rows)))

    def batches() -> Iterator[list[str]]:
        for batch in dataset.select_columns(columns).iter(_READ_ROWS):
            yield [sentence for column in columns for sentence in batch[column]]

    return batches(), len(dataset) * len(columns)


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
    def load_tiktoken_bpe(encoding: tiktoken.Encoding) -> dict[bytes, int]:
        return encoding._mergeable_ranks

    def extract_vocab_merges_from_model(self, encoding: tiktoken.Encoding):
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
        # Loaded as their own class, tokenizers of BERT, GPT-NeoX and others replace the ending that is set below.
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer.backend_tokenizer,
            clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
            split_special_tokens=tokenizer.split_special_tokens,
            **tokenizer.special_tokens_map,
        )
    vocabulary = tokenizer.get_vocab()
    needed = ("pad_token", "bos_token", "eos_token")
    missing = {role: SPECIAL_TOKENS[role] for role in needed if getattr(tokenizer, role) is None}
    for role, token in missing.items():
        if token in vocabulary:
            raise UserError(
                f"tokenizer.existing: {name!r} has no {role}, and {token!r} is taken (id {vocabulary[token]}); set its "
                f"{role} yourself and save it to a folder"
            )
    if missing:
        tokenizer.add_special_tokens(missing)
        logger.info(f"tokenizer: added {', '.join(missing.values())} to {name!r} as new tokens")
    pad = tokenizer.pad_token_id
    for role, token_id in (("eos_token", tokenizer.eos_token_id), ("bos_token", tokenizer.bos_token_id)):
        if pad == token_id:
            raise UserError(
                f"tokenizer.existing: in {name!r} pad_token and {role} are the same token (id {pad}), so padding "
                "cannot be told from text; give pad_token a token of its own and save the tokenizer to a folder"
            )
    if tokenizer("a").input_ids[-1] != tokenizer.eos_token_id:
        if not tokenizer.is_fast:
            raise UserError(f"tokenizer.existing: {name!r} does not end sequences with {tokenizer.eos_token!r}")
        end_with_eos(tokenizer)
    return tokenizer
