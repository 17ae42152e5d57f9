"""Small models to translate with, trained once per process, and ways to run `scratch translate`."""

import io
import os
import re
import shutil
import signal
import sys
import tempfile
from functools import cache, partial
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from conftest import SHALLOW, SMALL_MODEL
from forked import start
from search_cases import decided
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, pipeline

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration, ScratchTranslationPipeline
from modeling_scratch.commands import translate
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers, load_translator, save_tokenizers
from modeling_scratch.model.batched_generation import tokenize
from modeling_scratch.model.confidence import FILE, Confidence, ngrams_of
from modeling_scratch.model.kept_words import RESERVED
from modeling_scratch.model.translations import best_texts
from modeling_scratch.training.calibration import ngram_set
from modeling_scratch.training.fused_loss import fused_cross_entropy

CORPUS = make_corpus(300, 1, 1, seed=3)["train"]
SENTENCES = [pair["en"] for pair in CORPUS][:12]
LEARNT = sorted(CORPUS, key=lambda pair: len(pair["en"]))[:80]


def make_folder(
    folder: Path, target_size: int | None = None, updates: int = 150, reserves: bool = False, **fields
) -> Path:
    """
    Save a model that is trained until its translations differ and end, in float64, so that translations do not depend
    on the batch, the process or the processor. With `target_size` it has two vocabularies; with `reserves`, tokens for
    kept words, and it splits lines, and copies kept words in `LEARNT`, which it translates well.
    """
    return Path(shutil.copytree(_made_once(target_size, updates, reserves, **fields), folder))


@cache
def _made_once(target_size: int | None, updates: int, reserves: bool, **fields) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="model-", dir=os.environ["HF_HOME"]))
    texts = [pair[side] for side in ("en", "de")[: 1 + reserves] for pair in CORPUS]
    source = train_tokenizer(iter([texts]), 900 if reserves else 300, reserves=reserves)
    source.init_kwargs |= {"splits_lines": True} if reserves else {}
    target = train_tokenizer(iter([[pair["de"] for pair in CORPUS]]), target_size) if target_size else source
    save_tokenizers(source, target, folder)  # before use, which would add padding settings to the file
    fields |= {"vocab_size": len(source), "max_position_embeddings": 120 if reserves else 60, "dropout": 0.0}
    if target_size:
        fields |= {"decoder_vocab_size": len(target), "share_encoder_decoder_embeddings": False}
    torch.manual_seed(0)
    model = ScratchForConditionalGeneration(ScratchConfig(**(SMALL_MODEL | SHALLOW | fields)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    batches = []
    corpus = [*LEARNT, *map(_with_kept_word, LEARNT, cycle(RESERVED[:4]))] if reserves else CORPUS
    for pairs in (corpus[first::20] for first in range(20)):
        inputs = source([pair["en"] for pair in pairs], padding=True, return_tensors="pt")
        labels = target([pair["de"] for pair in pairs], padding=True, return_tensors="pt").input_ids
        batches.append({**inputs, "labels": labels.masked_fill(labels == 0, -100)})
    for update in range(updates):
        model(**batches[update % 20], fused_loss=fused_cross_entropy).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model.generation_config = GenerationConfig(num_beams=3, max_new_tokens=40 if reserves else 20, **tokens)
    model.double().save_pretrained(folder)
    return folder


def _with_kept_word(pair: dict[str, str], word: str) -> dict[str, str]:
    """A pair with a reserved character at the beginning of both sides or, of every other pair, before the full stop."""
    if ord(word) % 2:
        return {side: f"{text[:-1]} {word}{text[-1]}" for side, text in pair.items()}
    return {side: f"{word} {text}" for side, text in pair.items()}


def calibrate(folder: Path) -> Path:
    """Give a model of `make_folder` a confidence.json: it has learnt the sentences of CORPUS, of at most 40 tokens."""
    rows = tokenize(load_tokenizers(str(folder))[0], [pair["en"] for pair in CORPUS], None)
    known = ngram_set(dict.fromkeys(ngram for row in rows for ngram in ngrams_of(row)))
    confidence = Confidence({"mean_log_probability": (-1.5, 0.5), "known_ngrams": (0.8, 0.1)}, 40, known)
    (folder / FILE).write_text(confidence.text())
    return folder


# The reason to doubt the translations of sentences by a model that `calibrate` was called for.
DOUBTS = {
    "How could anybody ever have known?": "unlike",
    "Guten Morgen, wie geht es dir?": "language",
    f"{SENTENCES[0][:-1]} and they need the flower.": "length",
}


def load(folder, **options) -> ScratchTranslationPipeline:
    return pipeline("translation", model=str(folder), pipeline_class=ScratchTranslationPipeline, **options)


def best(model, source_tokenizer, target_tokenizer, texts: list[str], **options) -> list[str]:
    """The best translation of each text."""
    return best_texts(Translator(model, source_tokenizer, target_tokenizer).translate(texts, **options))


def by_hand(folder: Path, sentences: list[str], **generation) -> list[str]:
    """Translations by `generate`, one sentence at a time."""
    model, (source, target) = AutoModelForSeq2SeqLM.from_pretrained(folder), load_tokenizers(str(folder))
    outputs = [model.generate(**source(sentence, return_tensors="pt"), **generation) for sentence in sentences]
    return [target.decode(output[0], skip_special_tokens=True) for output in outputs]


@cache
def one_vocabulary() -> Path:
    """A model from English to German; its tokenizer names the languages."""
    folder = make_folder(Path(tempfile.mkdtemp(dir=os.environ["HF_HOME"])) / "model")
    save_tokenizers(*load_tokenizers(str(folder)), folder, 60, ("en", "de"))
    return folder


@cache
def with_kept_words() -> Path:
    """As `one_vocabulary`, with tokens for kept words and a confidence. It splits lines into sentences."""
    folder = make_folder(Path(tempfile.mkdtemp(dir=os.environ["HF_HOME"])) / "model", updates=250, reserves=True)
    save_tokenizers(*load_tokenizers(str(folder)), folder, 120, ("en", "de"))
    return calibrate(folder)


@cache
def two_vocabularies() -> Path:
    """A model that does not name its languages."""
    return make_folder(Path(tempfile.mkdtemp(dir=os.environ["HF_HOME"])) / "model", target_size=330)


def widened(run: Path, folder: Path) -> Path:
    """A copy of a run in float64, whose translations do not depend on the batch, the process or the processor."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints"))
    load_translator(str(run)).double().save_pretrained(folder)
    return folder


def sure_of(folder: Path, sentences: list[str], rounding: float = 1e-3, **settings) -> list[bool]:
    """The sentences that another runtime, in float32, must translate exactly as `generate` does (see `decided`)."""
    model, (source, _) = load_translator(str(folder)).double(), load_tokenizers(str(folder))
    batch = source(sentences, padding=True, return_tensors="pt")
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    rows = decided(partial(model.generate, **inputs, **settings), rounding)
    sure = rows.view(len(sentences), -1).all(dim=1).tolist()
    assert sum(sure) > len(sentences) / 2
    return sure


def run_translate(patch, model, text: bytes = b"", stderr=io.StringIO, **options) -> tuple[int, bytes, str]:
    """
    Run `scratch translate` in this process, by default in PyTorch: its exit code, standard output and standard error
    (see `without_cuts`).

    Args:
        patch: pytest's monkeypatch.
        text: standard input.
        stderr: makes the stream for standard error.
    """
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))
    patch.setattr(sys, "stdout", output)
    patch.setattr(sys, "stderr", stderr())
    code = 0
    try:
        translate.main(str(model), **{"engine": "torch"} | options)
    except SystemExit as stop:
        code = stop.code
    output.flush()
    return code, output.buffer.getvalue(), without_cuts(sys.stderr.getvalue())


def without_cuts(stderr: str) -> str:
    """Standard error without the warnings about cut translations: a model that has learned little often needs them."""
    return re.sub(r"warning: .*(was|were) cut at .*\n", "", stderr)


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def same_rows(found: bytes, expected: bytes) -> None:
    """Assert that tab-separated cells are equal, except that scores may differ by the rounding of their last digit."""
    cells, others = (output.decode().replace("\n", "\t\n\t").split("\t") for output in (found, expected))
    assert len(cells) == len(others)
    for cell, other in zip(cells, others, strict=True):
        is_score = re.fullmatch(r"-?\d+\.\d{4}", other)
        assert float(cell) == pytest.approx(float(other), abs=1.5e-4) if is_score else cell == other


class Translating:
    """
    `scratch translate` in a forked process, by default in PyTorch, with pipes for its standard input and output.

    Args:
        file: receives its standard error.
        terminal: a terminal that replaces standard input and standard error.
    """

    def __init__(self, file: Path, folder: Path, terminal: int | None = None, **options):
        given, write = (terminal, None) if terminal is not None else os.pipe()
        read, taken = os.pipe()
        # Connections, since these can be sent to another process.
        ends = Connection(given, writable=False), Connection(taken, readable=False)
        self.child = start(file, _translate, *ends, str(folder), {"engine": "torch"} | options)
        for end in ends:
            end.close()
        self.stdin = None if write is None else os.fdopen(write, "wb", buffering=0)
        self.stdout = os.fdopen(read, "rb")


def _translate(given: Connection, taken: Connection, folder: str, options: dict) -> None:
    os.dup2(given.fileno(), 0)
    os.dup2(taken.fileno(), 1)
    if os.isatty(0):
        os.dup2(0, 2)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    translate.main(folder, **options)
