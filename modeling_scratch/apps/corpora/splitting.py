"""
Hold out whole files or packages for validation and test, without sources that other files have too.

Pairs that are drawn at random from programs' messages or a translation memory say little about new ones: their
neighbours, often the same but for a word, are in the training set.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ...data.local_files import FORMATS, check_file, is_table, read_table
from ...errors import UserError
from ...files import new_output

SPLITS = ("train", "validation", "test")
_MOST = 1.5  # a file may have that many times the pairs that are still asked for


@dataclass(frozen=True)
class Split:
    """
    What `split_corpus` did.

    Args:
        pairs: the number of pairs of each split.
        held_out: the files, or other values of the column, of validation and test.
        also_elsewhere: how many of their pairs were left out, since their sources are in other files too.
    """

    pairs: dict[str, int]
    held_out: dict[str, list[str]]
    also_elsewhere: int


def split_corpus(
    pairs: Path, folder: Path, source: str, column: str, validation: int, test: int, seed: int = 0
) -> Split:
    """
    Write train.jsonl, validation.jsonl and test.jsonl to a new folder. The memory it takes is 12 bytes a pair.

    Args:
        pairs: a table, as `data.train_files` has it.
        source: the name of the column of sources.
        column: pairs with the same text in it stay together; what follows a "#" in it does not count.
        validation, test: about how many pairs they get. Whole files seldom have exactly as many.
        seed: decides which files are held out.

    Raises:
        UserError: this is no table; a column is missing; every file has too many pairs; the folder exists.
    """
    check_file(pairs)
    if not is_table(pairs):
        raise UserError(f"{pairs} is no table; name a file such as `scratch corpus from` writes ({', '.join(FORMATS)})")
    names: dict[str, int] = {}
    hashes, owners = [], []
    for row in _rows(pairs, source, column):
        hashes.append(_hash(row[source]))
        owners.append(names.setdefault(_file_of(row[column]), len(names)))
    hashed, owner = np.array(hashes, dtype=np.uint64), np.array(owners, dtype=np.int32)
    del hashes, owners
    alone = _in_one_file(hashed, owner)
    sizes = np.bincount(owner[alone], minlength=len(names))
    order = np.random.default_rng(seed).permutation(len(names))
    chosen = {"test": _choose(order, sizes, test)}
    chosen["validation"] = _choose(np.setdiff1d(order, chosen["test"], assume_unique=True), sizes, validation)
    for name, wanted in (("test", test), ("validation", validation)):
        if wanted and not len(chosen[name]):
            raise UserError(
                f"{pairs}: none of its {len(names):,} files can be held out whole for {wanted:,} pairs; ask for more "
                "pairs, name another column with --by, or leave it to data.validation_size in a recipe"
            )
    split_of = np.full(len(names), SPLITS.index("train"))
    for name, files in chosen.items():
        split_of[files] = SPLITS.index(name)
    counts, left_out = dict.fromkeys(SPLITS, 0), 0
    with new_output(folder) as temporary:
        temporary.mkdir()
        files = {name: (temporary / f"{name}.jsonl").open("w", encoding="utf-8") for name in SPLITS}
        try:
            for row, file, is_alone in zip(_rows(pairs, source, column), owner, alone, strict=True):
                name = SPLITS[split_of[file]]
                if name != "train" and not is_alone:
                    left_out += 1
                    continue
                counts[name] += 1
                files[name].write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        finally:
            for opened in files.values():
                opened.close()
    listed = list(names)
    return Split(counts, {name: sorted(listed[file] for file in files) for name, files in chosen.items()}, left_out)


def _rows(pairs: Path, source: str, column: str) -> Iterator[dict[Any, Any]]:
    for number, row in enumerate(read_table(pairs), start=1):
        for name in (source, column):
            if not isinstance(row.get(name), str):
                raise UserError(
                    f"{pairs}, row {number:,}: no text in a column {name!r}; it has {', '.join(map(str, row))}"
                )
        yield row


def _file_of(origin: str) -> str:
    """memory.tmx for memory.tmx#17. The first "#" counts: a place may have others, and in names of files it is %23."""
    return origin.partition("#")[0]


def _hash(text: str) -> int:
    """Of a source, without regard to case and spaces: "Save as" and "Save As " are the same."""
    plain = " ".join(text.casefold().split())
    return int.from_bytes(blake2b(plain.encode(), digest_size=8).digest(), "little")


def _in_one_file(hashed: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """For each pair, whether no other file has its source."""
    distinct, places = np.unique(hashed, return_inverse=True)
    least, most = np.full(len(distinct), len(owner), dtype=np.int64), np.full(len(distinct), -1, dtype=np.int64)
    np.minimum.at(least, places, owner)
    np.maximum.at(most, places, owner)
    return (least == most)[places]


def _choose(order: np.ndarray, sizes: np.ndarray, wanted: int) -> np.ndarray:
    """Files in this order, while they fit, until they have as many pairs."""
    chosen, missing = [], wanted
    for file in order:
        if missing > 0 and 0 < sizes[file] <= _MOST * missing:
            chosen.append(file)
            missing -= sizes[file]
    return np.array(chosen, dtype=np.int64)
