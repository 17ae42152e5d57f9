"""Translates with CTranslate2, without PyTorch and Transformers, which take seconds to import."""

import hashlib
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2  # from an extra of this package
import numpy as np
from huggingface_hub import hf_hub_download
from tokenizers import Tokenizer

from .. import __version__
from ..errors import UserError
from ..files import remove, written_whole
from ..model.confidence import Confidence, NgramSet, ngrams_of, places_of
from ..model.text import TextRules, tokenized
from ..model.translations import Translation, Translations
from ..model_names import loading
from .engine import Engine, cores_of_process, keeping_threads_of_torch

logger = logging.getLogger(__name__)

# In a folder that `scratch convert ctranslate2` wrote: arguments for translate_batch, and what the model is for.
SETTINGS, ORIGIN = "generation.json", "origin.json"
# Beside a conversion that is kept: what was warned of, such as settings that the model lacks; and in place of one: why
# there is none.
_WARNINGS, _OBSTACLE = "warnings.txt", "obstacle.txt"
_MODEL = "model.txt"  # the folder or name that a kept conversion is of
_TARGET_FOLDER = "target_tokenizer"  # as in model/translation_pipeline.py, which imports PyTorch; a test compares them
_WARNING = "warning: "  # as `log_to_terminal` writes them
# What a conversion reads of a folder, but for the facts that the service's page shows.
_READ = [
    *("config.json", "generation_config.json", "confidence.json", "model*.safetensors*", "pytorch_model*.bin*"),
    *("*token*.json", "*.spm", "vocab.*", "merges.txt", f"{_TARGET_FOLDER}/*"),
]
_TOKENS = 512  # per batch; about the fastest of those tried, 256 to 4,096


def has_gpu() -> bool:
    """Whether PyTorch would translate on a GPU: by CUDA, or on a Mac."""
    return ctranslate2.get_cuda_device_count() > 0 or sys.platform == "darwin"


class CTranslate2Engine(Engine):
    """
    A model on the CPU. It returns no word alignments.

    Args:
        name: a folder that `scratch convert ctranslate2` wrote, or another model, which is converted once.
        threads: how many sub-batches are translated at a time; None: one per core.
        dtype: float32 or int8, to which it converts the weights as it loads them; None: as they were saved.

    Attributes:
        differences: what the model's settings mean otherwise in `generate()`.
    """

    can_fork = False  # CTranslate2 starts threads, which a forked process would not have
    is_aligned = False
    batch_tokens = None
    limit: int
    longest_source: int | None
    unknown: int | None
    num_beams: int
    rules: TextRules
    confidence: Confidence | None

    def __init__(self, name: str, threads: int | None = None, dtype: str | None = None):
        if dtype is not None and dtype not in ctranslate2.get_supported_compute_types("cpu"):
            raise UserError(f"--dtype {dtype}: CTranslate2 does not compute in it on this processor; leave it out")
        folder = Path(name) if (Path(name) / ORIGIN).is_file() else converted(name)
        self.origin: dict[str, Any] = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        self.settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.limit, self.num_beams = self.origin["limit"], self.settings["beam_size"]
        self.longest_source, self.differences = self.origin.get("longestSource"), self.origin.get("differences", [])
        # One thread per sub-batch: several would wait for each other at every step. A full queue would wait for room.
        options = {"inter_threads": threads or cores_of_process(), "intra_threads": 1, "max_queued_batches": -1}
        with keeping_threads_of_torch():
            self.translator = ctranslate2.Translator(
                str(folder), device="cpu", compute_type=dtype or "default", **options
            )
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        splits = bool(config.get("split_special_tokens"))
        self.source, self.target = _load_tokenizers(folder, self.origin["hasPlainTokenizers"], splits)
        has_whole_symbols = self.origin["takesAnyText"]
        self.unknown = self.source.token_to_id(config.get("unk_token")) if has_whole_symbols else None
        self.rules = TextRules.of(config, self.origin["isTranslator"], has_whole_symbols)
        self.confidence = Confidence.load(str(folder))
        warnings = folder / _WARNINGS
        for warning in warnings.read_text(encoding="utf-8").splitlines() if warnings.is_file() else ():
            if warning not in self.differences:
                logger.warning(warning)

    def _hard_limit(self) -> int | None:
        return self.limit if self.origin.get("hasLearnedPositions") else None

    def tokenize(
        self, texts: Sequence[str], limit: int | None = None, features: Sequence[str] | None = None
    ) -> list[list[int]]:
        def encode(texts: list[str]) -> list[list[int]]:
            return [encoding.ids for encoding in self.source.encode_batch(texts)]

        return tokenized(encode, texts, limit, features=features, takes_any=self.rules.takes_any)

    def translate_batch(
        self,
        texts: Sequence[str],
        tokens: list[list[int]],
        num_beams: int | None = None,
        num_return_sequences: int = 1,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        **ignored,
    ) -> Translations:
        if max_new_tokens is not None and (most := self._hard_limit()) is not None:
            max_new_tokens = min(max_new_tokens, most)  # as `generate_batch` does, since positions end there
        given = {"beam_size": num_beams, "length_penalty": length_penalty, "max_decoding_length": max_new_tokens}
        settings = self.settings | {name: value for name, value in given.items() if value is not None}
        settings["num_hypotheses"] = settings["beam_size"] if self.rules.reserved else num_return_sequences
        share = math.ceil(sum(map(len, tokens)) / self.translator.num_translators)
        results = self.translator.translate_batch(
            [[self.source.id_to_token(id) for id in row] for row in tokens],
            max_batch_size=max(1, min(share, _TOKENS)),
            batch_type="tokens",
            return_scores=True,
            return_end_token=True,
            asynchronous=True,
            **settings,
        )
        confidence = self.confidence and replace(self.confidence, known=_LookedUp(self.confidence.known, tokens))
        rows: Translations = [[] for _ in texts]
        # CTranslate2 4.8 translates long ones first. They are decoded while it translates the others.
        for place in sorted(range(len(texts)), key=lambda place: -len(tokens[place])):
            result = results[place].result()
            text_of = cache(partial(self._decoded, result.hypotheses))
            for rank in self.rules.best_ranks(texts[place], len(result.hypotheses), num_return_sequences, text_of):
                made, length = result.hypotheses[rank], len(result.hypotheses[rank])
                # CTranslate2 divides the score by length^penalty.
                score = result.scores[rank] * length ** settings["length_penalty"]
                is_cut = not made or made[-1] not in settings["end_token"]
                translation = Translation(text_of(rank), score, is_cut, length=length)
                rated = self.rules.rated(translation, tokens[place], confidence) if made else translation
                rows[place].append(rated)
        return rows

    def _decoded(self, hypotheses: list[list[str]], rank: int) -> str:
        tokens = [self.target.token_to_id(token) for token in hypotheses[rank]]
        return self.target.decode(tokens, skip_special_tokens=True)


class _LookedUp(NgramSet):
    """
    The n-grams of some rows of source tokens that a set contains. They are looked up at once, since one by one takes a
    quarter of the time of greedy search in 8 bits.
    """

    def __init__(self, known: NgramSet, rows: Sequence[Sequence[int]]):
        super().__init__(known.bits)
        bits, self._found = np.frombuffer(known.bits, np.uint8), set[tuple[int, ...]]()
        ngrams = {ngram for row in rows for ngram in ngrams_of(row)}
        for size in {len(ngram) for ngram in ngrams}:
            of_size = [ngram for ngram in ngrams if len(ngram) == size]
            tokens: Any = np.array(of_size).T
            places = np.array(places_of(tokens, 8 * len(bits)))  # (hashes, n-grams)
            is_known = (bits[places >> 3] >> (places & 7) & 1).all(0)
            self._found.update(of_size[place] for place in np.flatnonzero(is_known))

    def __contains__(self, ngram: tuple[int, ...]) -> bool:
        return ngram in self._found


class _TransformersTokenizer:
    """A tokenizer of Transformers, with the interface of the tokenizers library."""

    def __init__(self, folder: Path):
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.id_to_token = self.tokenizer.convert_ids_to_tokens
        self.token_to_id = self.tokenizer.convert_tokens_to_ids
        self.decode = self.tokenizer.decode

    def encode_batch(self, texts: list[str]) -> list[SimpleNamespace]:
        rows = self.tokenizer(texts, truncation=False, verbose=False).input_ids
        return [SimpleNamespace(ids=row) for row in rows]


def _load_tokenizers(folder: Path, are_plain: bool, splits: bool) -> tuple[Any, Any]:
    """
    The tokenizers of source and target, of the tokenizers library if they are plain, as origin.json says.

    Args:
        splits: the source's reads special tokens in a text as text.
    """
    target = folder / _TARGET_FOLDER if (folder / _TARGET_FOLDER).is_dir() else folder
    if not are_plain:
        return _TransformersTokenizer(folder), _TransformersTokenizer(target)
    made = [Tokenizer.from_file(str(part / "tokenizer.json")) for part in (folder, target)]
    for each in made:
        each.no_truncation()
        each.no_padding()
    made[0].encode_special_tokens = splits
    return made[0], made[1]


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]


def _write_in_a_process(name: str, folder: Path) -> list[str]:
    """Convert a model to a new folder, and return what that warned of. Raises UserError if it cannot be converted."""
    logger.info(f"converting {name} for CTranslate2, once; the result is kept in {folder.parent}")
    command = [sys.executable, "-m", "modeling_scratch", "convert", "ctranslate2", name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    told = done.stderr.splitlines()
    if done.returncode:
        raise UserError((told or ["no reason given"])[-1].removeprefix("error: "))
    return [line.removeprefix(_WARNING) for line in told if line.startswith(_WARNING)]


def converted(name: str, write: Callable[[str, Path], list[str]] = _write_in_a_process) -> Path:
    """
    A model's folder for CTranslate2, kept until the model changes, or its folder is gone when another one is converted.

    Args:
        write: converts the model, if it has to be. By default a process of its own does so, since it imports PyTorch.

    Raises:
        UserError: the model cannot be converted.
    """
    folder = Path(name)
    if folder.is_dir():
        model = str(folder.resolve())
        files = sorted({path for pattern in _READ for path in folder.glob(pattern)})
        content: Any = [
            (str(path.relative_to(folder)), (info := path.stat()).st_size, info.st_mtime_ns) for path in files
        ]
    else:
        with loading(name, "config"):
            model, content = name, Path(hf_hub_download(name, "config.json")).parent.name  # the commit
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "modeling_scratch"
    kept = f"ctranslate2-{_hash(model)}-"
    made = root / f"{kept}{_hash([__version__, content])}"  # other versions may write other files
    if not made.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with written_whole(made, only_writer=False) as temporary:
            try:
                told = write(name, temporary)
            except UserError as error:
                if "cannot express" not in str(error):  # it may be another one next time
                    raise
                remove(temporary)
                temporary.mkdir()
                (temporary / _OBSTACLE).write_text(str(error), encoding="utf-8")
                told = []
            (temporary / _WARNINGS).write_text("\n".join(told), encoding="utf-8")
            (temporary / _MODEL).write_text(model, encoding="utf-8")
        for old in set(root.glob("ctranslate2-*")) - {made}:
            if old.name.startswith(kept) or _is_forsaken(old):
                remove(old)
    if (made / _OBSTACLE).is_file():
        raise UserError((made / _OBSTACLE).read_text(encoding="utf-8"))
    return made


def _is_forsaken(made: Path) -> bool:
    """Whether a conversion is of a folder that is gone."""
    model = made / _MODEL
    folder = Path(model.read_text(encoding="utf-8")) if model.is_file() else Path()
    return folder.is_absolute() and not folder.is_dir()
