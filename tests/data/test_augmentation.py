"""Augmentation changes training pairs anew in each epoch, and the same way in any process and when a run resumes."""

import difflib
import itertools
import pickle
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL_RUN, few_sentences, quick_run, read_metrics, run_training
from datasets import Dataset
from forked import run_group
from train_on_processes import train_all

from modeling_scratch.data.augmentation import (
    AUGMENTATIONS,
    NOISES,
    change_final_punctuation,
    change_numbers,
    drop_accents,
    drop_final_punctuation,
    drop_punctuation,
    join_sentences,
    lower_case,
    make_augmenter,
    misspell,
    title_case,
    upper_case,
)
from modeling_scratch.data.batches import EMPTY, AugmentedPairs, PairCollator, make_loader
from modeling_scratch.data.corpus import gold_links, make_corpus, unmarked
from modeling_scratch.data.tokenizer import PairTokenizer, tokenize_pairs, train_tokenizer
from modeling_scratch.errors import UserError
from modeling_scratch.recipe.schema import ROBUST, DataSection, MixedSource

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


KEPT_WORDS = ["{Name}", "https://Example.org/a.B?c=D", "%1$s", "@Élodie", "`Some.Code`", "v1.234.5", '<x id="100"/>']
# Sentences, the last two without case, accents or spaces between words.
SENTENCES = {
    "en": "A “clever” dog, however old, doesn't sleep in room 12345.",
    "de": "Der Fuß des Mädchens tut weh, aber es läuft über die Straße.",
    "vi": "Tôi đã gặp người phụ nữ đó, ở chợ.",
    "el": "Η γάτα κοιμάται στον καναπέ, αλλά ο σκύλος όχι.",  # noqa: RUF001
    "tr": "Işık açık, İstanbul'da ılık bir akşam.",  # noqa: RUF001
    "ru": "Мальчик ещё читает книгу, а девочка спит.",  # noqa: RUF001
    "ar": "الكلب الكبير ينام في الحديقة، والقطة تلعب.",
    "hi": "लड़का किताब पढ़ता है, और लड़की सोती है।",
    "ko": "고양이가 소파에서 잠을 자고 있습니다.",
    "th": "แมวนอนอยู่บนโซฟา",
    "ja": "猫はソファで寝ている。がぎぐ、パン。",
    "zh": "猫在沙发上睡觉，狗在院子里。",  # noqa: RUF001
}
SAMPLE = [tuple(map(unmarked, pair.values())) for pair in make_corpus(300, 1, 1)["train"]]


def augmented_by(name: str, source: str, target: str, seed: int, languages=("en", "de")) -> tuple[str, str]:
    changed = make_augmenter({name: 1}, 1, languages, lambda: SAMPLE)(
        {"source": [source], "target": [target]}, [(seed,)]
    )
    return changed["source"][0], changed["target"][0]


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "random_smiles"])
def test_kept_words_are_not_changed(name):
    """Where sentences are joined, only the end is new; where a phrase is cut out, one may be left out."""
    for seed, (language, sentence) in enumerate(SENTENCES.items()):
        source, target = (
            f"{' '.join(KEPT_WORDS)} {text} {' '.join(KEPT_WORDS)}" for text in (sentence, SENTENCES["de"])
        )
        for text in augmented_by(name, source, target, seed, (language, "de")):
            assert name == "cut_phrase" or all(text.count(word) == 2 for word in KEPT_WORDS)


def test_what_a_language_does_not_have_is_not_changed():
    def changing(name):
        changed = set()
        for language, text in SENTENCES.items():
            sources = {augmented_by(name, text, "?", seed, (language, "de"))[0] for seed in range(20)}
            changed |= {language} if sources != {text} else set()
        return changed

    with_case = {"en", "de", "vi", "el", "tr", "ru"}
    assert changing("lower_case") == changing("upper_case") == changing("title_case") == with_case
    assert changing("drop_accents") == {"de", "vi", "el", "tr", "ru"}
    assert changing("misspell") == {*with_case, "ar"}  # and in Hindi, longer words without vowels
    assert changing("drop_punctuation") == SENTENCES.keys() - {"th"}


@pytest.mark.parametrize(
    ("language", "text", "capitals", "small"),
    [  # by ICU 78, as toLocaleUpperCase and toLocaleLowerCase of Node.js 20
        ("tr", "İstanbul Işık", "İSTANBUL IŞIK", "istanbul ışık"),  # noqa: RUF001
        ("az-Latn", "İki", "İKİ", "iki"),
        ("en", "Iris fußes", "IRIS FUSSES", "iris fußes"),
        ("el", "Γάιδαρος ή μαΐου", "ΓΑΪΔΑΡΟΣ Ή ΜΑΪΟΥ", "γάιδαρος ή μαΐου"),
        ("el", "Πρώιμος Ξενάκης, Asunción", "ΠΡΩΪΜΟΣ ΞΕΝΑΚΗΣ, ASUNCIÓN", "πρώιμος ξενάκης, asunción"),
    ],
)
def test_capitals_are_those_of_the_language(language, text, capitals, small):
    random, languages = np.random.default_rng(0), (language, language)
    assert upper_case(text, text, random, languages) == (capitals, capitals)
    assert lower_case(text, text, random, languages) == (small, text)


def test_title_case_has_a_capital_at_the_beginning_of_each_word():
    source = "the “old” well-known cat doesn't eat 3d ǆ épées; iPads"
    expected = "The “Old” Well-known Cat Doesn't Eat 3d ǅ Épées; IPads"
    random = np.random.default_rng(0)
    assert title_case(source, "ein Ziel", random) == (expected, "ein Ziel")
    assert title_case("ilk iş", "a", random, ("tr", "en")) == ("İlk İş", "a")
    assert title_case("the {n}th day", "a", random) == ("The {n}th Day", "a")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (("Yes, it's “3.5”, not 1,000: why?", "Ja, 3,5?"), ("Yes it's 3.5 not 1,000 why", "Ja, 3,5")),
        (("¿Qué tal, señor?", "How are you, sir?"), ("Qué tal señor", "How are you, sir")),
        (("他来了，我走了。", "He came, I left."), ("他来了 我走了", "He came, I left")),  # noqa: RUF001
        (("Stop!", "Halt."), ("Stop", "Halt.")),
        (("الكلب، القطة؟", "The dog, the cat?"), ("الكلب القطة", "The dog, the cat")),
        (("a-b (c) 50 % & d_e", "x"), ("a-b (c) 50 % & d_e", "x")),
        (("Open {name}'s file, please.", "Bitte."), ("Open {name}'s file please", "Bitte")),
    ],
)
def test_punctuation_is_dropped_from_the_source(pair, expected):
    assert drop_punctuation(*pair, np.random.default_rng(0)) == expected


def test_the_final_mark_of_the_source_is_written_otherwise():
    def found(source):
        return {change_final_punctuation(source, "x.", np.random.default_rng(seed)) for seed in range(40)}

    assert found("Run?!") == {(f"Run{marks}", "x.") for marks in ("?!!", "?!!!", " ?!", "?!")}
    assert found("狗跑。") == {(f"狗跑{marks}", "x.") for marks in ("。。", "。。。", " 。", ".")}
    assert found("Run") == {("Run", "x.")}
    assert found("...") == {("...", "x.")}


def test_dropped_accents_leave_the_letters_of_canonical_decompositions():
    """In Latin and Greek; other scripts stay but for the Russian letter."""
    scripts, strokes, random = Counter(), str.maketrans("Øø", "Oo"), np.random.default_rng(0)
    for code in (*range(0x80, 0x3400), *range(0xA640, 0xAC10)):
        letter = unicodedata.normalize("NFC", chr(code))[0]
        decomposed = unicodedata.normalize("NFD", letter)
        script = unicodedata.name(letter, "?").split()[0]
        (found, _), base = drop_accents(f"x{letter}x", "", random), decomposed[0].translate(strokes)
        if letter in "ёЁ":
            assert found == f"x{'Ее'[letter == 'ё']}x"  # noqa: RUF001
        elif script in ("LATIN", "GREEK") and letter.isalpha() and len(decomposed) > 1 and letter not in "ϓϔ":
            assert found == f"x{base}x", letter
            scripts[script] += 1
        elif script not in ("LATIN", "GREEK", "COMBINING"):
            assert found == unicodedata.normalize("NFC", f"x{letter}x"), letter
    assert min(scripts.values()) > 200
    assert drop_accents("Łódź, Đặng, øre, ış", "é", np.random.default_rng(0)) == ("Lodz, Dang, ore, is", "é")
    of_german = {drop_accents("Größe", "", np.random.default_rng(seed), ("de-AT", "en"))[0] for seed in range(20)}
    assert of_german == {"Große", "Groesse"}


def test_a_tenth_of_the_words_have_one_mistake():
    """By the neighbours of some keys, and Damerau's kinds of mistakes."""
    distance = pytest.importorskip("rapidfuzz.distance").OSA.distance
    beside = {"g": "tyfhvb", "q": "wa", "p": "ol", "m": "njk", "s": "awedzx"}
    replaced = {letter: set() for letter in beside}
    total = changed = 0
    for seed in range(4000):
        words = ["Gg", *["magpies", "Gasps", "quilling", "Zoë"] * 3, "in"]
        source, target = misspell(" ".join(words), "Ziel", np.random.default_rng(seed))
        assert target == "Ziel"
        total += 12
        assert source.startswith("Gg ")
        assert source.endswith(" in")
        for word, found in zip(words, source.split(" "), strict=True):
            if found == word:
                continue
            changed += 1
            assert distance(word, found) == 1
            for tag, start, end, first, last in difflib.SequenceMatcher(None, word, found).get_opcodes():
                if tag == "replace" and len(word) == len(found) and end - start == last - first == 1:
                    letter, other = word[start], found[first]
                    assert letter.isupper() == other.isupper()
                    replaced.get(letter.lower(), set()).add(other.lower())
    assert changed / total == pytest.approx(0.1, abs=5 * (0.09 / total) ** 0.5)
    for letter, others in beside.items():
        assert replaced[letter] == set(others)
    german, russian = (
        {misspell(text, "", np.random.default_rng(seed), (language, "en"))[0] for seed in range(3000)}
        for language, text in (("de", "zzz"), ("ru", "ааа"))  # noqa: RUF001
    )
    assert {"tzz", "uzz"} <= german
    assert "xzz" not in german
    assert {"каа", "ваа", "паа", "саа"} <= russian  # noqa: RUF001


def test_cut_phrases_translate_each_other():
    """By the gold links of the embedded corpus; the last words of both sides are linked."""
    rows = [tuple(pair.values()) for pair in make_corpus(3000, 1, 1, marked=True)["train"]]
    pairs = [tuple(map(unmarked, row)) for row in rows]
    augment = make_augmenter({"cut_phrase": 1}, 0, ("en", "de"), lambda: pairs)
    columns = dict(zip(("source", "target"), map(list, zip(*pairs, strict=True)), strict=True))
    changed = augment(columns, [(row,) for row in range(len(pairs))])
    right, cut, lengths = 0, 0, Counter()
    for row, pair, source, target in zip(rows, pairs, changed["source"], changed["target"], strict=True):
        if (source, target) == pair:
            continue
        cut += 1
        lengths[len(source.split())] += 1
        words, others = ([word.strip(".,") for word in text.split()] for text in pair)
        ends = [
            {place for place in range(len(whole)) if whole[: place + 1][-len(part.split()) :] == part.split()}
            for whole, part in ((words, source), (others, target))
        ]
        right += any(first in ends[0] and second in ends[1] for first, second in gold_links(*row))
    assert cut > 0.8 * len(pairs)
    assert right > 0.97 * cut
    assert lengths[1] > 0.4 * cut
    assert lengths[2] > 0.1 * cut


def test_joined_sentences_are_two_pairs():
    sample = [("A b.", "C d."), ("E f.", "G h.")]
    found = {join_sentences("X. ", "Y.", np.random.default_rng(seed), sample) for seed in range(20)}
    assert found == {("X. A b.", "Y. C d."), ("X. E f.", "Y. G h.")}
    assert join_sentences("猫。", "Y.", np.random.default_rng(0), [("狗。", "Z.")], ("zh", "en")) == (
        "猫。狗。",
        "Y. Z.",
    )
    for one, other in ((("X.", ""), sample), (("X.", "Y."), [("Z.", "")])):
        assert join_sentences(*one, np.random.default_rng(0), other) == one
    with pytest.raises(ValueError, match=r"data\.augment: join_sentences would join pairs of different features"):
        DataSection(augment="robust", feature_columns=["more"], train_files="a.tsv")


def test_numbers_are_the_same_on_both_sides():
    source, target = (
        "In 1984, 10,000 of 012345 (1984) paid 42 or 777.",
        "1984 zahlten 10.000 von 012345 (1984) 42 oder 778.",
    )
    for seed in range(30):
        found = change_numbers(source, target, np.random.default_rng(seed))
        numbers = [
            [word.strip("(),.").replace(",", ".") for word in text.split() if any(map(str.isdigit, word))]
            for text in found
        ]
        year, other, last = numbers[0][0], *numbers[0][1:3]
        assert numbers[0] == [year, other, last, year, "42", "777"]
        assert numbers[1] == [year, other, last, year, "42", "778"]
        assert [len(year), year[2:], year[0] != "0"] == [4, "84", True]
        assert (other[:3], other[4:]) == ("10.", "00")
        assert (len(last), last[4:]) == (6, "45")
    assert year != "1984"


def test_numbers_within_kept_words_stay_on_the_other_side_too():
    pair = "See https://example.org/404 now.", "Siehe Fehler 404 jetzt."
    assert change_numbers(*pair, np.random.default_rng(0)) == pair


def test_robust_names_functions_whose_changes_depend_on_seed_and_place_alone():
    """Not on other pairs, nor on the process: what a worker gets is a copy."""
    assert DataSection(augment="robust").augment == ROBUST
    assert {*ROBUST, *NOISES} <= AUGMENTATIONS.keys()
    augment = make_augmenter(dict.fromkeys(ROBUST, 0.5), 3, ("en", "de"), lambda: SAMPLE)
    columns = dict(zip(("source", "target"), map(list, zip(*SAMPLE, strict=True)), strict=True))
    places = [(0, row) for row in range(len(SAMPLE))]
    together = augment(columns, places)
    assert sum(pair not in SAMPLE for pair in zip(*together.values(), strict=True)) > 200
    copied = pickle.loads(pickle.dumps(augment))
    for row, place in enumerate(places):
        one = copied({name: texts[row : row + 1] for name, texts in columns.items()}, [place])
        assert {name: texts[0] for name, texts in one.items()} == {name: texts[row] for name, texts in together.items()}


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
    times = 2 + 1  # epochs, and once for the tokenizer
    assert given == Counter({pair: times * count for pair, count in counts.items()})


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
