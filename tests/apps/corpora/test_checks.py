# ruff: noqa: RUF001 (letters of other scripts that look like Latin ones)
"""What checks find in training pairs, and that they leave good pairs alone."""

from itertools import pairwise

import numpy as np
import pytest
from rapidfuzz import fuzz

from modeling_scratch.apps.corpora.checks import CHECKS, check_pairs, copied_words
from modeling_scratch.apps.corpora.duplicates import Duplicates
from modeling_scratch.apps.corpora.identification import _identifier
from modeling_scratch.apps.corpora.rules import read_rules
from modeling_scratch.apps.corpora.word_translations import WordTranslations, tokens
from modeling_scratch.data.corpus import make_corpus

THRESHOLDS = read_rules().thresholds


@pytest.fixture(scope="module")
def corpus() -> list[tuple[str, str]]:
    """Good pairs, each once."""
    pairs = make_corpus(3000, 1, 1, 0)["train"]
    return list({(pair["en"], pair["de"]): None for pair in pairs})


def found(pairs, languages=("en", "de"), **options) -> list[set[str]]:
    """The checks that find a fault in each pair."""
    names: list[set[str]] = [set() for _ in pairs]
    for checked in check_pairs(lambda: pairs, languages, **options):
        for finding in checked.findings(THRESHOLDS):
            names[finding.line - 1].add(finding.check)
    return names


def faults_of(source: str, target: str, languages=("en", "de")) -> set[str]:
    """Those that need no corpus."""
    names = {"empty", "encoding", "script", "repetition", "placeholders", "numbers", "punctuation", "length"}
    return found([(source, target)], languages, names=names)[0]


@pytest.mark.parametrize(
    ("source", "target", "faults"),
    [
        ("Save the file.", "Die Datei speichern.", set()),
        ("", "Nichts", {"empty"}),
        ("Text", "@@", {"empty"}),
        ("A dot", "\u200b", {"empty"}),
        ("...", "…", set()),
        ("over the fence", "Ã¼ber den Zaun", {"encoding"}),
        ("over the fence", "\ufffdber den Zaun", {"encoding"}),
        ("over the fence", "?ber den Zaun", {"encoding"}),
        ("for you", "f?r dich", {"encoding"}),
        ("Salt & pepper", "Salz &amp; Pfeffer", {"encoding"}),
        ("“Practice” of old", "»Übung« der Alten", set()),
        ("Who? Me?", "Wer? Ich?", set()),
        ("Déjà vu", "Déjà-vu", set()),
        ("The house", "Дом стоит на горе", {"script"}),
        ("Alpha: \u03b1", "Alpha: \u03b1", set()),
        ("It is good.", "gut gut gut gut gut gut.", {"repetition"}),
        ("No, no, no!", "Nein, nein, nein!", set()),
        ("A dog runs off.", "Ein Hund läuft weg. Ein Hund läuft weg.", {"repetition"}),
        ("And it rains. And it rains. And it rains.", "Und es regnet.", {"repetition"}),
        ("He runs very, very fast.", "Er läuft sehr schnell.", set()),
        ("From %s, %s, %s, and %s.", "Von %s, %s, %s und %s.", set()),
        ("Hello {name}", "Hallo", {"placeholders"}),
        ("%1$s of %2$s", "%s von %s", set()),
        ("%d files in %s", "In %s sind %d Dateien", set()),
        ("Paid 1,250.00 in 2019", "2019 wurden 1.250,00 gezahlt", set()),
        ("In 1999", "Im Jahr 2999", {"numbers"}),
        ("2 men", "Zwei Männer", set()),
        ("Is it?", "Es ist.", {"punctuation"}),
        ("He said “yes.”", "Er sagte „ja.“", set()),
        ("Ready? let's go home", "Bereit? Los, gehen wir heim", set()),
        ("The castle and court", "Das Schlo? und der Hof", {"encoding"}),
        ("{n, plural, one {# file} other {# files}}!", "{n, plural, one {# Datei} other {# Dateien}}!", set()),
        (
            "{n, plural, one {# file} other {# files}}!",
            "{m, plural, one {# Datei} other {# Dateien}}!",
            {"placeholders"},
        ),
        ("x" * 2001, "y", {"length"}),
    ],
)
def test_faults_of_single_pairs(source, target, faults):
    assert faults_of(source, target) == faults


@pytest.mark.parametrize(
    ("language", "good", "bad"),
    [
        ("ja", "ファイルを開く", "Otkryt fail"),
        ("ru", "Открыть файл", "Zakroyte okno"),
        ("sr", "Отвори датотеку", "Otvori datoteku"),
        ("zh-TW", "開啟檔案資料夾", "Close a window"),
        ("ko", "파일 열기 창", "ファイルを開く"),
    ],
)
def test_scripts(language, good, bad):
    assert "script" not in faults_of("Open the file", good, ("en", language))
    assert "script" in faults_of("Open the file", bad, ("en", language))


def test_good_pairs_are_left_alone(corpus):
    """But near duplicates, which a small grammar cannot but make."""
    names = found(corpus, names=CHECKS.keys() - {"near_duplicate", "several_targets"})
    assert sum(map(bool, names)) < 0.01 * len(corpus)


def test_misaligned_pairs_are_found(corpus):
    """Lines moved against each other, in a twentieth of the corpus."""
    moved = list(range(0, len(corpus), 20))
    pairs = list(corpus)
    for place, other in zip(moved, [*moved[1:], moved[0]], strict=True):
        pairs[place] = corpus[place][0], corpus[other][1]
    names = found(pairs, names=["misaligned"])
    hits = {place for place, own in enumerate(names) if own}
    assert len(hits & set(moved)) >= 0.9 * len(moved)
    assert len(hits & set(moved)) >= 0.95 * len(hits)


def half(text: str) -> str:
    words = text.split()
    return " ".join(words[: len(words) // 2])


@pytest.mark.parametrize(
    "cut_pair",
    [lambda source, target: (source, half(target)), lambda source, target: (half(source), target)],
    ids=["targets", "sources"],
)
def test_cut_sides_are_found(corpus, cut_pair):
    long = [place for place, pair in enumerate(corpus) if min(len(side.split()) for side in pair) > 6]
    cut = set(long[::20])
    pairs = [cut_pair(*pair) if place in cut else pair for place, pair in enumerate(corpus)]
    names = found(pairs, names=["truncated"])
    hits = {place for place, own in enumerate(names) if own}
    assert len(hits & cut) >= 0.9 * len(cut)
    assert len(hits & cut) >= 0.95 * len(hits)


def test_a_sentence_more_on_one_side_is_found(corpus):
    more = set(range(0, len(corpus), 20))
    pairs = [
        (source, f"{target} {corpus[place - 7][1]}" if place in more else target)
        for place, (source, target) in enumerate(corpus)
    ]
    names = found(pairs, names=["truncated", "length_ratio"])
    hits = {place for place, own in enumerate(names) if own}
    assert len(hits & more) >= 0.5 * len(more)
    assert len(hits & more) >= 0.95 * len(hits)


def test_sources_that_are_partly_untranslated_are_found(corpus):
    long = [place for place, (source, _) in enumerate(corpus) if len(source.split()) > 9]
    partly = set(long[::20])
    pairs = [
        (source, f"{target} {half(source)}" if place in partly else target)
        for place, (source, target) in enumerate(corpus)
    ]
    names = found(pairs, names=["untranslated"])
    assert {place for place, own in enumerate(names) if own} == partly
    assert not any(found(pairs, names=["untranslated"], languages=("en", "en-GB")))


@pytest.mark.parametrize(
    ("source", "target", "row"),
    [
        ("He said he was out of it.", "Er sagte he was out of it.", "he was out of it."),
        ("the New York Times Square Ball", "der New York Times Square Ball", ""),
        ("use %s in %s or %s", "nutze %s in %s or %s", ""),
        ("run git config --global --add x", "git config --global --add x ausführen", ""),
    ],
)
def test_words_in_a_row_on_both_sides(source, target, row):
    assert " ".join(copied_words(source, target)) == row


def test_other_languages_and_copies_are_found(corpus):
    strays = {
        7: "Le chien noir court dans la forêt avec un bâton.",
        70: "De kinderen spelen samen in het grote park achter het huis.",
        700: "Una donna con il cappello rosso legge un libro.",
    }
    copies = [place for place in range(5, len(corpus), 50) if len(corpus[place][0].split()) > 2]
    pairs = [
        (source, strays.get(place, source if place in copies else target))
        for place, (source, target) in enumerate(corpus)
    ]
    names = found(pairs, names=["language", "copy"])
    assert {place for place, own in enumerate(names) if "language" in own} == set(strays)
    assert {place for place, own in enumerate(names) if "copy" in own} == set(copies)


def test_names_may_be_copies(corpus):
    pairs = [*corpus, ("Bluetooth", "Bluetooth"), ("Ana Maria Souza Lima", "Ana Maria Souza Lima")]
    assert found(pairs, names=["copy", "language"])[-2:] == [set(), set()]


def test_copies_are_no_fault_within_one_language(corpus):
    assert not any(found([(source, source) for source, _ in corpus[:100]], ("en", "en-GB"), names=["copy"]))


def test_pairs_without_languages_are_checked_for_the_rest():
    pairs = [("CCO.CC", "CCOCC"), ("CCO.CC", "CCOCC"), ("N#N", "")]
    assert found(pairs, None) == [set(), {"duplicate"}, {"empty"}]


def test_overlap_with_a_test_set(corpus):
    source, target = corpus[10]
    pairs = [*corpus[:10], (source, target), (source.upper(), target), ("Something else here", "Etwas anderes hier")]
    names = found(pairs, test_sources=[source], names=["test_overlap", "near_test_overlap"])
    assert names[-3:] == [{"test_overlap"}, {"near_test_overlap"}, set()]


def test_near_duplicates_are_those_that_comparing_all_pairs_finds():
    """At a likeness of 0.9, the hashes must lead to all but a few of them, and to nothing else."""
    drawn = np.random.default_rng(0)
    words = [f"{first}{last}" for first in ("ba", "ko", "mi", "tru", "la") for last in map(str, range(60))]
    texts = [" ".join(drawn.choice(words, 9)) for _ in range(150)]
    changed = [text.replace("a", "e", 1) for text in texts[::3]] + [text.upper() for text in texts[1::3]]
    pairs = [(text, f"{text} {text}"[::-1]) for text in texts + changed]
    duplicates = Duplicates()
    duplicates.add(*zip(*pairs, strict=True))
    duplicates.close()
    scores = duplicates.find(0, *zip(*pairs, strict=True))["near_duplicate"]
    expected = [
        max(
            (
                min(fuzz.ratio(a.lower(), b.lower()) for a, b in zip(pair, other, strict=True))
                for other in pairs[:place]
            ),
            default=0,
        )
        for place, pair in enumerate(pairs)
    ]
    alike = {place for place, likeness in enumerate(expected) if likeness >= 90}
    hits = {place for place, score in enumerate(scores) if score >= 0.9}
    assert hits <= alike
    assert len(hits) >= 0.95 * len(alike) >= 90


def test_pairs_that_differ_by_a_word_or_a_number_are_no_duplicates(corpus):
    words = [("import", "importieren"), ("export", "exportieren"), ("exprot", "exportieren")]
    pairs = [
        (f"{one} it {how}", f"{other} {wie}") for one, other in words[:2] for how, wie in zip("abc", "xyz", strict=True)
    ]
    for one, other in [*words, ("Import", "importieren")]:
        number = 9 if one == "Import" else 7
        pairs.append(
            (f"Select this to {one} the secret key into file {number}.", f"Die Datei {number} mit Schlüssel {other}.")
        )
    names = found([*corpus[:500], *pairs], names=["near_duplicate"])
    assert [bool(own) for own in names[-4:]] == [False, False, True, False]


def test_exact_duplicates_and_several_targets():
    pairs = [("a b", "c"), ("a b", "d"), ("a b", "c"), ("e", "c")]
    names = found(pairs, names=["duplicate", "several_targets"])
    assert names == [set(), {"several_targets"}, {"duplicate"}, set()]


def test_a_pair_does_not_vouch_for_itself(corpus):
    """The evidence of a pair is about what a corpus without it has taught."""
    strange = ("Quincunx zeugma.", "Wolpertinger Rollmops.")
    words = WordTranslations([*corpus, strange])
    assert np.isnan(np.concatenate(words.evidence([strange], True).log_odds)).all()
    twice = WordTranslations([*corpus, strange, strange])
    assert np.nanmin(np.concatenate(twice.evidence([strange], True).log_odds)) > 2


def test_the_probabilities_of_languages_are_those_of_py3langid():
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    texts = [
        "The house is green.",
        "DAS HAUS",
        "Дом",
        "これは本です",
        "cafe\u0301",
        "",
        "12",
        "Haz clic aquí",
        "ما اسمك؟",
    ]
    own = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for text, probabilities in zip(texts, _identifier().probabilities(texts), strict=True):
        expected = dict(own.rank(text))
        assert probabilities == pytest.approx([expected[code] for code in _identifier().languages], abs=1e-5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The _Houses, the 2016!", ["the", "house", "2016"]),
        ("&Open über", ["open", "über"]),
        ("Open東京都", ["open", "東京", "京都"]),
        ("ไทย", ["ไท", "ทย"]),
    ],
)
def test_tokens(text, words):
    assert tokens(text) == words


def test_checks_find_the_same_in_batches_of_any_size(corpus, monkeypatch):
    pairs = [*corpus[:300], *((source, other[1]) for (source, _), other in pairwise(corpus[300:320]))]
    names = found(pairs)
    monkeypatch.setattr("modeling_scratch.apps.corpora.checks._BATCH", 37)
    assert found(pairs) == names


@pytest.mark.parametrize("count", [1, 500])
def test_lists_of_terms_teach_nothing(count):
    """No word is in two pairs, so that none is known to translate another."""
    terms = [(f"a{number:04}"[::-1] + "x", f"y{number:04}"[::-1] + "z") for number in range(count)]
    (checked,) = check_pairs(lambda: terms, ("en", "de"))
    assert not checked.scores["misaligned"].any()
    assert not checked.scores["truncated"].any()
