"""
Changes to training pairs, drawn anew in every epoch, by functions that recipes name (`data.augment`).

To add one, put a function into `AUGMENTATIONS`: before training from Python, or here.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import UserError
from ..recipe.schema import SOURCE, TARGET

# Given a source, its target and a source of randomness, returns the changed pair. It must take any pair, and get all
# its randomness from the generator: a resumed run must make the same changes.
Augmentation = Callable[[str, str, np.random.Generator], tuple[str, str]]

_OTHERS = "\u3002\uff01\uff1f\u061f\u0964"  # full stops, ! and ? in Chinese and Japanese, Arabic, and Hindi
_FINAL_MARKS = f".!?\u2026{_OTHERS}"
_SAME = str.maketrans(_OTHERS, ".!??.")
_TOKENS_OF_SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|%\d\d|.")


def lower_case(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """The source in lower case; the target stays, so that the model writes properly what was typed carelessly."""
    return source.lower(), target


def drop_final_punctuation(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """Both sides without their final mark, such as the full stop of a sentence, if it is the same."""
    kept = [text.rstrip(_FINAL_MARKS) for text in (source, target)]
    marks = [text[len(rest) :].translate(_SAME) for text, rest in zip((source, target), kept, strict=True)]
    return (kept[0].rstrip(), kept[1].rstrip()) if marks[0] == marks[1] else (source, target)


def random_smiles(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """
    The source's molecules in another of their equivalent spellings and in another order (Tetko et al. 2020,
    https://arxiv.org/abs/2003.02804); the target stays. A source that RDKit cannot read stays too. `>` separates
    reactants and reagents, as in USPTO; there may be spaces between tokens.
    """
    sides = []
    for side in "".join(source.split()).split(">"):
        molecules = [_random_spelling(molecule, random) for molecule in side.split(".")]
        if None in molecules:
            return source, target
        random.shuffle(molecules)
        sides.append(".".join(map(str, molecules)))
    spelled = ">".join(sides)
    return " ".join(_TOKENS_OF_SMILES.findall(spelled)) if " " in source.strip() else spelled, target


def _random_spelling(molecule: str, random: np.random.Generator) -> str | None:
    from rdkit import Chem, rdBase  # from an extra of this package

    with rdBase.BlockLogs():
        read = Chem.MolFromSmiles(molecule)
    if read is None:
        return None
    if read.GetNumAtoms() == 0:
        return ""
    return Chem.MolToRandomSmilesVect(read, 1, randomSeed=int(random.integers(2**31)))[0]


AUGMENTATIONS: dict[str, Augmentation] = {
    "lower_case": lower_case,
    "drop_final_punctuation": drop_final_punctuation,
    "random_smiles": random_smiles,
}


@dataclass(frozen=True)
class Augmenter:
    """
    Changes pairs by several functions, one after the other.

    Args:
        functions: each with the probability that it changes a pair.
    """

    functions: Sequence[tuple[Augmentation, float]]
    seed: int

    def __call__(self, pairs: Mapping[str, Sequence[str]], places: Sequence[Sequence[int]]) -> dict[str, Sequence[str]]:
        """
        The changed pairs, of the columns `source` and `target`; other columns stay.

        Args:
            places: for each pair the numbers, such as epoch and row, that together with the seed determine its changes.
        """
        changed = []
        for source, target, place in zip(pairs[SOURCE], pairs[TARGET], places, strict=True):
            random = np.random.default_rng([self.seed, *place])
            for function, probability in self.functions:
                if random.random() < probability:
                    source, target = function(source, target, random)
            changed.append((source, target))
        sources, targets = zip(*changed, strict=True)
        return {**pairs, SOURCE: sources, TARGET: targets}


def make_augmenter(probabilities: Mapping[str, float], seed: int) -> Augmenter | None:
    """
    The augmenter of a recipe; None if it names no function.

    Args:
        probabilities: of the functions, by their names in `AUGMENTATIONS`.

    Raises:
        UserError: there is no such function.
        ModuleNotFoundError: a function needs a library that is not installed.
    """
    for name in probabilities:
        if name not in AUGMENTATIONS:
            close = difflib.get_close_matches(name, AUGMENTATIONS, n=1, cutoff=0)
            raise UserError(
                f"data.augment: there is no {name!r}; did you mean {close[0]!r}? ({', '.join(AUGMENTATIONS)})"
            )
        AUGMENTATIONS[name]("C", "C", np.random.default_rng(0))  # fails now if a library is missing
    functions = [(AUGMENTATIONS[name], probability) for name, probability in probabilities.items()]
    return Augmenter(functions, seed) if functions else None
