"""Augmentation changes training pairs anew in each epoch, and the same way in any process and when a run resumes."""

import itertools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL_RUN, few_sentences, quick_run, read_metrics, run_training
from datasets import Dataset
from forked import run_group
from train_on_processes import train_all

from modeling_scratch.data.augmentation import AUGMENTATIONS, drop_final_punctuation, lower_case, make_augmenter
from modeling_scratch.data.batches import EMPTY, AugmentedPairs, PairCollator, make_loader
from modeling_scratch.data.tokenizer import PairTokenizer, tokenize_pairs, train_tokenizer
from modeling_scratch.errors import UserError
from modeling_scratch.recipe.schema import DataSection, MixedSource

WORDS = [f"{a}{b}{c}" for a, b, c in itertools.product("ABCD", repeat=3)]
TOKENIZER = train_tokenizer(iter([WORDS]), 50, "characters")


def reverse(source: str, target: str, random: np.random.Generator) -> tuple[str, str]:
    """The source's letters in a random order, twice as long for A..., and no target for D..."""
    letters = list(source * 2 if source.startswith("A") else source)
    random.shuffle(letters)
    return "".join(letters), "" if source.startswith("D") else target


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(AUGMENTATIONS, "reverse", reverse)


# -- functions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (("A dog runs.", "Ein Hund rennt."), ("A dog runs", "Ein Hund rennt")),
        (("What?!", "Was ?!"), ("What", "Was")),
        (("Dogs run.", "狗跑。"), ("Dogs run", "狗跑")),
        (("Run!", "Lauf."), ("Run!", "Lauf.")),
        (("Run.", "Lauf"), ("Run.", "Lauf")),
        (("Version 1.2", "Version 1.2"), ("Version 1.2", "Version 1.2")),
    ],
)
def test_the_same_final_mark_is_dropped_on_both_sides(pair, expected):
    assert drop_final_punctuation(*pair, np.random.default_rng(0)) == expected


def test_lower_case_changes_the_source_alone():
    assert lower_case("A Dog", "Ein Hund", np.random.default_rng(0)) == ("a dog", "Ein Hund")


def test_random_smiles_spell_the_same_molecules():
    """By the canonical SMILES of RDKit; reactants and reagents stay apart."""
    chem = pytest.importorskip("rdkit.Chem")
    source, target = "CC(=O)N[C@@H](C)C(=O)O.c1ccccc1Br>[Na+].Cl", "CCO"
    found = [AUGMENTATIONS["random_smiles"](source, target, np.random.default_rng(seed)) for seed in range(50)]
    assert {pair[1] for pair in found} == {target}
    assert len({pair[0] for pair in found}) > 40
    sides = {tuple(chem.CanonSmiles(side) for side in pair[0].split(">")) for pair in found}
    assert sides == {tuple(chem.CanonSmiles(side) for side in source.split(">"))}
    spaced = " ".join("CC(=O)N>[Na+]").replace("[ N a + ]", "[Na+]")
    for text, _ in (AUGMENTATIONS["random_smiles"](spaced, "", np.random.default_rng(seed)) for seed in range(9)):
        assert set(text.split(" ")) <= {"C", "N", "O", "=", "(", ")", ">", "[Na+]"}
        assert [chem.CanonSmiles(side) for side in text.replace(" ", "").split(">")] == ["CC(N)=O", "[Na+]"]
    for same in ("not a molecule.", "", "C1CC", "C C . ("):
        assert AUGMENTATIONS["random_smiles"](same, "", np.random.default_rng(0))[0] == same


def test_augmentation_does_not_meet_tags():
    with pytest.raises(ValueError, match=r"data\.augment would change the tags"):
        DataSection(augment={"lower_case": 1}, mix=[MixedSource(name="embedded", tag="<BT>")])


def test_what_is_missing_is_named(monkeypatch, tmp_path, capsys):
    with pytest.raises(UserError, match="no 'lowercase'; did you mean 'lower_case'"):
        make_augmenter({"lowercase": 0.1}, 0)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(SystemExit) as ended:
        run_training(*SMALL_RUN, *few_sentences(), "data.augment.random_smiles=1", f"output_dir={tmp_path / 'run'}")
    assert ended.value.code == 2
    assert "rdkit, which is not installed: pip install 'modeling-scratch[smiles]'" in capsys.readouterr().err


def test_functions_change_their_share_of_the_pairs_one_after_the_other():
    augment = make_augmenter({"lower_case": 0.25, "drop_final_punctuation": 0.5}, 3)
    pairs = {"source": ["A."] * 4000, "target": ["B."] * 4000, "features": ["F"] * 4000}
    changed = augment(pairs, [(0, row) for row in range(4000)])
    assert changed["features"] == pairs["features"]
    counts = Counter(zip(changed["source"], changed["target"], strict=True))
    shares = {("A.", "B."): 3 / 8, ("a.", "B."): 1 / 8, ("A", "B"): 3 / 8, ("a", "B"): 1 / 8}
    assert counts.keys() == shares.keys()
    for pair, share in shares.items():  # within five standard errors
        assert counts[pair] / 4000 == pytest.approx(share, abs=5 * (share * (1 - share) / 4000) ** 0.5)


# -- loading -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def augmented(registered):
    texts = Dataset.from_dict({"source": ["", *WORDS], "target": ["?", *WORDS]})
    tokenizer = PairTokenizer(TOKENIZER, TOKENIZER, 4, 4)  # the end token is the fourth
    return AugmentedPairs(
        texts, tokenize_pairs(texts, tokenizer, "train"), tokenizer, make_augmenter({"reverse": 0.9}, 5)
    )


def sides(pairs) -> list[tuple[str, str]]:
    return [tuple(TOKENIZER.decode(ids, skip_special_tokens=True) for ids in pair) for pair in pairs]


def test_pairs_that_would_be_empty_or_too_long_stay(augmented):
    found = sides(augmented.__getitems__([(0, index) for index in range(64)]))
    assert [target for _, target in found] == WORDS
    changed = {word[0]: 0 for word in WORDS}
    for (source, _), word in zip(found, WORDS, strict=True):
        assert Counter(source) == Counter(word)
        changed[word[0]] += source != word
    assert (changed["A"], changed["D"]) == (0, 0)
    assert changed["B"] > 5


def test_a_pair_depends_on_seed_epoch_and_row_alone(augmented):
    """Not on the batch, nor on the worker."""
    drawn = [(epoch, index) for epoch in range(3) for index in range(64)]
    together = sides(augmented.__getitems__(drawn))
    assert sides(augmented.__getitems__([one])[0] for one in drawn) == together
    assert together[:64] != together[64:128]
    assert augmented.__getitems__([(0, EMPTY)])[0][1].tolist() == [-100] * 4
    batches = [[drawn[place] for place in range(first, 192, 10)] for first in range(10)]
    alone, shared = (list(make_loader(augmented, batches, PairCollator(0), num_workers=workers)) for workers in (0, 2))
    for one, other in zip(alone, shared, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_training_pairs_are_changed_anew_in_each_epoch_and_no_others(tmp_path, monkeypatch):
    """By a function of one's own."""
    given = Counter()

    def note(source, target, random):
        given[source, target] += 1
        return source, target

    monkeypatch.setitem(AUGMENTATIONS, "note", note)
    options = ["optimization.max_steps=null", "optimization.max_epochs=2", "data.max_target_tokens=200"]
    quick_run(tmp_path / "run", *few_sentences(60), *options, "data.augment={note: 1.0}")
    del given["C", "C"]  # the first try
    path = few_sentences(60)[0].partition("=")[2]
    texts = [Path(f"{path}.{language}").read_text().splitlines() for language in ("en", "de")]
    counts = Counter(zip(*texts, strict=True))
    assert given == Counter({pair: 2 * count for pair, count in counts.items()})


@pytest.mark.slow
def test_two_processes_make_the_updates_of_one(tmp_path):
    """Where target tokens differ from those that were planned."""
    for processes, pieces in ((1, 2), (2, 1)):
        options = [*SMALL_RUN, *few_sentences(), "model.overrides.dropout=0.0", "optimization.max_steps=8"]
        options += [f"optimization.gradient_accumulation_steps={pieces}", "data.augment={drop_final_punctuation: 0.5}"]
        overrides = [*options, f"output_dir={tmp_path / str(processes)}"]
        run_group(tmp_path, processes, train_all, [{"overrides": overrides, "float64": True}])
    one, two = (read_metrics(tmp_path / processes, "train") for processes in "12")
    assert [record["target_tokens"] for record in one] == [record["target_tokens"] for record in two]
    assert [record["loss"] for record in one] == pytest.approx([record["loss"] for record in two], abs=1e-9)
    plain = quick_run(tmp_path / "plain", "model.overrides.dropout=0.0", "optimization.max_steps=8")
    planned, changed = (records[-1]["target_tokens"] for records in (read_metrics(plain, "train"), one))
    assert 0.9 * planned < changed < planned
