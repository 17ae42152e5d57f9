"""Pairs that repeat earlier ones, exactly or nearly, and what is also in a test set."""

from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import regex
from rapidfuzz import fuzz
from xxhash import xxh3_64_intdigest

_PERMUTATIONS, _BANDS = 36, 12  # of MinHash: pairs with 60 % of their words in common meet with 95 %
_LEAST = 0.8  # likeness of what is compared further
_WORD = regex.compile(r"[\p{L}\p{M}]+|\p{Nd}+")


def _key(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", errors="surrogatepass"))


def _words(text: str) -> list[str]:
    """Words without capitals and punctuation; for scripts without spaces, letters."""
    words = _WORD.findall(text.lower())
    return words if len(words) > 2 else list(text.lower())


class Duplicates:
    """
    Finds pairs that were there before, in two passes over a corpus: `add` all pairs, then `find` for the same pairs in
    the same order. A pair is compared with the first one of each of twelve hashes that it has. Keeps some 200 bytes a
    pair, and the text of those that seem to have a near duplicate.
    """

    def __init__(self) -> None:
        self._pairs, self._sources = array("Q"), array("Q")
        self._bands: list[np.ndarray] = []
        self._kept: dict[int, tuple[str, str]] = {}

    def add(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        from rensa import RMinHash  # from an extra of this package

        self._sources.extend(map(_key, sources))
        self._pairs.extend(_key(f"{source}\n{target}") for source, target in zip(sources, targets, strict=True))
        words = [
            [*_words(source), *(f"\n{word}" for word in _words(target))]
            for source, target in zip(sources, targets, strict=True)
        ]
        digests = RMinHash.digest_matrix_from_token_sets(words, _PERMUTATIONS, 0).to_rows()
        rows = np.array(digests, dtype=np.uint64).reshape(len(words), _BANDS, -1)
        mixed = np.zeros(rows.shape[:2], dtype=np.uint64)
        for column in range(rows.shape[2]):
            mixed = (mixed ^ rows[:, :, column]) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        self._bands.append(mixed)

    def close(self) -> None:
        """To be called after all pairs were added."""
        pairs, sources = (np.frombuffer(keys, dtype=np.uint64) for keys in (self._pairs, self._sources))
        _, first, of_pair = np.unique(pairs, return_index=True, return_inverse=True)
        self._first = first[of_pair]
        self._is_copy = self._first != np.arange(len(pairs))
        _, first, of_source = np.unique(sources, return_index=True, return_inverse=True)
        self._is_other_target = (first[of_source] != np.arange(len(pairs))) & ~self._is_copy
        bands = np.concatenate(self._bands) if self._bands else np.zeros((0, _BANDS), dtype=np.uint64)
        self._bands = []
        self._first_of_near = np.empty(bands.shape, dtype=np.int32)
        for band in range(_BANDS):
            _, first, of_band = np.unique(bands[:, band], return_index=True, return_inverse=True)
            self._first_of_near[:, band] = first[of_band]
        # Exact copies are found already.
        self._first_of_near[self._is_copy] = np.flatnonzero(self._is_copy)[:, None]
        earlier = self._first_of_near < np.arange(len(pairs))[:, None]
        self._wanted = np.unique(self._first_of_near[earlier])

    def find(
        self,
        first: int,
        sources: Sequence[str],
        targets: Sequence[str],
        are_same: Callable[[str, str], bool] | None = None,
    ) -> dict[str, np.ndarray]:
        """
        The scores of pairs for the checks `duplicate`, `near_duplicate` and `several_targets`, each (pairs,); and the
        place of the pair that each repeats, `earlier`, -1 where there is none.

        Args:
            first: the place of the first of these pairs in the corpus.
            are_same: whether two similar texts of one side say the same; None: all do.
        """
        places = slice(first, first + len(sources))
        begin, end = np.searchsorted(self._wanted, (places.start, places.stop))
        for place in self._wanted[begin:end].tolist():
            self._kept[place] = sources[place - first], targets[place - first]
        near = np.zeros(len(sources))
        repeated = np.where(self._is_copy[places], self._first[places], -1)
        rows, _ = np.nonzero(self._first_of_near[places] < np.arange(places.start, places.stop)[:, None])
        for row in np.unique(rows).tolist():
            earlier = {place for place in self._first_of_near[first + row].tolist() if place < first + row}
            pair = sources[row], targets[row]
            near[row], place = max((_likeness(pair, self._kept[place], are_same), -place) for place in earlier)
            repeated[row] = -place
        return {
            "duplicate": self._is_copy[places].astype(float),
            "near_duplicate": near,
            "several_targets": self._is_other_target[places].astype(float),
            "earlier": repeated,
        }


def _likeness(
    pair: tuple[str, str], other: tuple[str, str], are_same: Callable[[str, str], bool] | None = None
) -> float:
    """
    The share of characters that two pairs have in common, on the side where they have less, without capitals; 0 if a
    side does not say the same.
    """
    sides = list(zip(pair, other, strict=True))
    likeness = min(fuzz.ratio(one.lower(), two.lower()) for one, two in sides) / 100
    is_other = likeness >= _LEAST and are_same is not None and not all(are_same(*side) for side in sides)
    return 0.0 if is_other else likeness


class TestSources:
    """Sources of test sets, to find in training pairs."""

    __test__ = False  # pytest would collect it

    def __init__(self, sources: Iterable[str]):
        from rensa import RMinHash

        self._texts = list(dict.fromkeys(sources))
        self._exact = set(self._texts)
        self._bands: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for place, bands in enumerate(_bands_of(RMinHash, self._texts)):
            for key in bands:
                self._bands.setdefault(key, []).append(place)

    def find(self, sources: Sequence[str]) -> dict[str, np.ndarray]:
        """The scores of pairs for the checks `test_overlap` and `near_test_overlap`, each (pairs,)."""
        from rensa import RMinHash

        exact = np.array([text in self._exact for text in sources], dtype=float)
        near = np.zeros(len(sources))
        if self._texts:
            for row, bands in enumerate(_bands_of(RMinHash, sources)):
                places = {place for key in bands for place in self._bands.get(key, ())}
                if places and not exact[row]:
                    text = sources[row].lower()
                    near[row] = max(fuzz.ratio(text, self._texts[place].lower()) for place in places) / 100
        return {"test_overlap": exact, "near_test_overlap": near}


def _bands_of(hasher, texts: Sequence[str]) -> Iterable[list[tuple[int, tuple[int, ...]]]]:
    rows = hasher.digest_matrix_from_token_sets([_words(text) for text in texts], _PERMUTATIONS, 0).to_rows()
    size = _PERMUTATIONS // _BANDS
    for row in rows:
        yield [(band, tuple(row[band * size : (band + 1) * size])) for band in range(_BANDS)]
