"""The embedded corpus: size, seed, disjoint splits, and correct German."""

import pytest

from modeling_scratch.data.corpus import make_corpus, write_corpus


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(10000, 500, 500, seed=0)


def test_pairs_are_distinct_and_splits_disjoint(corpus):
    for language in ("en", "de"):
        sentences = [pair[language] for split in corpus.values() for pair in split]
        assert len(sentences) == len(set(sentences)) == 11000


def test_the_corpus_is_written_to_text_files(tmp_path, corpus):
    write_corpus(tmp_path, 50)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{split}.{language}" for split in ("test", "train", "validation") for language in ("de", "en")
    ]
    for language in ("en", "de"):
        lines = (tmp_path / f"train.{language}").read_text(encoding="utf-8").splitlines()
        assert lines == [pair[language] for pair in corpus["train"][:50]]


def test_the_corpus_depends_on_the_seed(corpus):
    assert make_corpus(50, 5, 5, seed=0)["train"] == corpus["train"][:50]
    assert make_corpus(50, 5, 5, seed=1)["train"] != corpus["train"][:50]


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("a small cat", {"eine kleine Katze", "einer kleinen Katze"}),
        ("the old man", {"der alte Mann", "den alten Mann", "dem alten Mann"}),
        ("an old child", {"ein altes Kind", "einem alten Kind"}),
        ("two young dogs", {"zwei junge Hunde", "zwei jungen Hunden"}),
        ("no clever horse", {"kein kluges Pferd", "keinem klugen Pferd"}),
        ("our strong birds", {"unsere starken Vögel", "unseren starken Vögeln"}),
    ],
)
def test_articles_and_adjectives_agree_in_gender_number_and_case(corpus, english, german):
    found = [pair for pair in corpus["train"] if f"{english} " in f"{pair['en'].lower()[:-1]} "]
    assert found
    for pair in found:
        assert any(form.lower() in pair["de"].lower() for form in german), pair


def test_verbs_are_second_in_main_clauses_and_last_in_subordinate_ones(corpus):
    pairs = [pair for split in corpus.values() for pair in split]
    fronted = [pair["de"] for pair in pairs if pair["de"].startswith("Heute ")]
    assert fronted
    subjects = ("der", "die", "das", "ein", "eine", "er", "sie", "wir", "kein", "keine", "dieser", "dieses", "diese")
    assert not any(sentence.split()[1] in subjects for sentence in fronted)
    dass = [pair["de"].rstrip(".").split() for pair in pairs if ", dass " in pair["de"]]
    finite = {"hat", "haben", "ist", "sind", "kann", "können", "muss", "müssen", "darf", "dürfen", "soll", "sollen"}
    with_auxiliary = [words for words in dass if finite & set(words)]
    assert with_auxiliary
    assert all(words[-1] in finite for words in with_auxiliary)
    assert any(pair["de"].endswith(" an.") and "kommt " in pair["de"] for pair in pairs)  # separable verbs
    assert any(pair["de"].endswith(" ankommt.") for pair in pairs)
    assert any(", der " in pair["de"] and " that " in pair["en"] for pair in pairs)  # relative clauses
