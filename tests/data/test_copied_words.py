"""Reserved characters: one token each, the same on both sides of training pairs, in place of words that are copied."""

import json
import random
import re
import unicodedata
from collections import Counter

import pytest
from conftest import SMALL_RUN, few_sentences, quick_run, run_training
from datasets import Dataset
from transformers import AutoTokenizer

from modeling_scratch.data import copied_words
from modeling_scratch.data.copied_words import Copies, find_copied_words, word_spans
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.tokenizer import PairTokenizer, tokenize_pairs, train_tokenizer
from modeling_scratch.inference.translate import Translator
from modeling_scratch.model.kept_words import RESERVED
from modeling_scratch.model.translations import best_texts

SENTENCES = [sentence for pair in make_corpus(500, 1, 1)["train"] for sentence in pair.values()]
PRIVATE = [f"{RESERVED[3]}{RESERVED[3]} \U0010ff20\U0010ff20 {character}!" for character in RESERVED] * 20
A, B, C = RESERVED[0], RESERVED[7], RESERVED[15]

NO_LANGUAGES = ["data.source_language=null", "data.target_language=null"]


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [SENTENCES, SENTENCES + PRIVATE], ids=["plain", "private use"])
@pytest.mark.parametrize("kind", ["bpe", "characters", "decomposed"])
def test_a_reserved_character_is_a_token_of_its_own_anywhere(kind, texts, tmp_path):
    size = 400 if kind == "bpe" else 90
    trained = train_tokenizer(iter([texts]), size, kind, reserves=True)
    assert len(trained) <= size
    trained.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.init_kwargs["reserved"] == 16
    numbers = {character: loaded(character).input_ids[-2] for character in RESERVED}
    assert len(set(numbers.values())) == 16
    assert not set(numbers.values()) & set(loaded.all_special_ids)
    texts = (f"{A} sleeps.", f"The {B}", f"({C}), '{A}'s {A}{B}{A}.", f"The{A}old: {C}!", A, f"{A}\u0301{B}", *RESERVED)
    for text in texts:
        ids = loaded(text).input_ids
        expected = {numbers[character]: text.count(character) for character in RESERVED if character in text}
        assert {number: ids.count(number) for number in numbers.values() if number in ids} == expected
        if kind == "bpe":
            assert loaded.decode(ids, skip_special_tokens=True) == text
        else:  # the vocabulary lacks some other symbols
            symbols = {symbol for symbol in text if loaded(symbol).input_ids[0] != loaded.unk_token_id}
            assert loaded.decode(ids, skip_special_tokens=True) == "".join(s for s in text if s in symbols)
    for text in SENTENCES[:50]:
        assert unicodedata.normalize("NFC", loaded.decode(loaded(text).input_ids, skip_special_tokens=True)) == text


def test_other_texts_have_the_tokens_that_they_would_have_had():
    with_reserved = train_tokenizer(iter([SENTENCES]), 418, reserves=True)
    plain = train_tokenizer(iter([SENTENCES]), 400)
    assert "reserved" not in plain.init_kwargs
    for text in SENTENCES[:50]:
        assert with_reserved.tokenize(text) == plain.tokenize(text)


# -- pairs -------------------------------------------------------------------------------------------------------------


def put_back(text: str, words: dict[str, str]) -> str:
    return "".join(words.get(character, character) for character in text)


def changed(source: str, target: str, place=(0,), words=None, seed=1) -> tuple[str, str]:
    made = Copies(seed, words or {})({"source": [source], "target": [target]}, [place])
    return made["source"][0], made["target"][0]


def test_kept_words_of_both_sides_become_the_same_characters():
    source, target = changed("See {name} at https://a.org/b, {name}.", "Auf https://a.org/b, {name}, {x}, ist {name}!")
    first, address, second = (character for character in source if character in RESERVED)
    assert len({first, address, second}) == 3
    assert source == f"See {first} at {address}, {second}."
    assert target == f"Auf {address}, {first}, {{x}}, ist {second}!"


def test_kept_words_of_one_side_stay():
    for pair in (("{a} and {b}", "{c} und {d}"), ("No words.", "Keine {x}."), (f"{A} sleeps", "schläft")):
        assert changed(*pair) == pair
    source, target = changed("%s %s %d", "%s, %d")
    assert Counter(source)["%"] == 1
    assert "%" not in target
    source, target = changed(f"{A} sleeps {{b}}", f"{{b}} schläft {A}")
    assert source[0] == target[-1]
    assert source[-1] == target[0]
    assert "{" not in source + target


def test_more_kept_words_than_characters_stay_in_part():
    words = [f"{{w{number}}}" for number in range(20)]
    source, target = changed(" ".join(words), " ".join(reversed(words)))
    assert [word for word in source.split() if word not in RESERVED] == words[16:]
    assert [word for word in target.split() if word not in RESERVED] == words[:15:-1]
    assert source.split()[:16] == target.split()[:3:-1]
    assert set(source.split()[:16]) == set(RESERVED)


def test_characters_depend_on_seed_and_place_alone():
    words = {"dog": "Hund", "cat": "Katze", "red": "rot"}
    pairs = {
        "source": ["the {a} dog, a cat", "the red dog"] * 500,
        "target": ["{a} Hund und Katze", "rot Hund"] * 500,
    }
    places = [(3, number) for number in range(1000)]
    copies = Copies(5, words)
    made = copies(pairs, places)
    order = random.Random(0).sample(range(1000), 1000)
    mixed = copies({name: [column[row] for row in order] for name, column in pairs.items()}, [places[r] for r in order])
    for name in pairs:
        assert [made[name][row] for row in order] == mixed[name]
        assert Copies(6, words)(pairs, places)[name] != made[name]
    assert len({text for text in made["source"][::2]}) == 16
    assert copies.key() != Copies(6, words).key() != Copies(6, {}).key()
    assert copies.key() == Copies(5, dict(reversed(words.items()))).key()


def test_some_words_are_copied_in_a_quarter_of_the_pairs():
    words = {"dog": "Hund", "cat": "Katze", "red": "rot", "old": "alt"}
    source, target = 'A red "dog", an old cat; the CAT.', "Hund rot (alt) Katze! KATZE"
    found = [changed(source, target, (number,), words) for number in range(4000)]
    different = [pair for pair in found if pair != (source, target)]
    assert 900 < len(different) < 1100
    counts = Counter()
    for pair in different:
        spans = [side for side in pair[0] if side in RESERVED]
        counts[len(spans)] += 1
        assert len(set(spans)) == len(spans)
        assert sorted(spans) == sorted(side for side in pair[1] if side in RESERVED)
        meant = {}
        for english, german in words.items():
            if english not in pair[0].replace("The", ""):
                place = [w.strip('",;.') for w in source.split()].index(english)
                meant[[w.strip('",;.') for w in pair[0].split()][place]] = english
                assert german not in pair[1]
        assert put_back(pair[0], meant) == source
        assert put_back(pair[1], {character: words[word] for character, word in meant.items()}) == target
    assert set(counts) == {1, 2, 3, 4}
    assert min(counts.values()) > 60


def test_linked_words_before_a_word_are_copied_with_it(monkeypatch):
    monkeypatch.setattr(copied_words, "_BESIDE", 0.0)
    linked = frozenset({("the", "dem"), ("old", "alten"), ("and", "und"), ("the", "die")})
    copies, found = Copies(1, {"dog": "Hund", "cat": "Katze"}, linked), set()
    for number in range(3000):
        pairs = {"source": ["he sees the old dog, and cat"], "target": ["er hilft dem alten Hund und Katze"]}
        made = copies(pairs, [(number,)])
        source, target = (re.sub(f"[{RESERVED}]", "X", made[side][0]) for side in pairs)
        assert Counter(re.findall(f"[{RESERVED}]", str(made["source"]))) == Counter(
            re.findall(f"[{RESERVED}]", str(made["target"]))
        )
        found.add((source, target))
    assert found == {
        ("he sees the old dog, and cat", "er hilft dem alten Hund und Katze"),
        ("he sees X, and cat", "er hilft X und Katze"),
        ("he sees the old X, and cat", "er hilft dem alten X und Katze"),
        ("he sees the old dog, and X", "er hilft dem alten Hund und X"),
        ("he sees the old dog, X", "er hilft dem alten Hund X"),
        ("he sees X, and X", "er hilft X und X"),
        ("he sees X, X", "er hilft X X"),
        ("he sees the old X, and X", "er hilft dem alten X und X"),
        ("he sees the old X, X", "er hilft dem alten X X"),
    }


def test_characters_stand_beside_linked_words(monkeypatch):
    monkeypatch.setattr(copied_words, "_BESIDE", 1.0)
    copies, found = Copies(1, {"dog": "Hund"}, frozenset({("the", "dem"), ("sees", "hilft"), ("sees", "er")})), set()
    for number in range(1000):
        made = copies({"source": ["«The dog», sees the"], "target": ["er «dem, Hund» hilft"]}, [(number,)])
        found.add(tuple(re.sub(f"[{RESERVED}]", "X", made[side][0]) for side in made))
    assert found == {
        ("«The dog», sees the", "er «dem, Hund» hilft"),
        ("«The dog», X sees the", "er «dem, Hund» X hilft"),
        ("«The dog», sees X the", "er «dem, Hund» hilft X"),
        ("«The dog», X sees the", "X er «dem, Hund» hilft"),
        ("«The dog», sees X the", "er X «dem, Hund» hilft"),
        ("«The dog», sees X the", "er «X dem, Hund» hilft"),
        ("«The dog», sees the X", "er «dem X, Hund» hilft"),
    }


def test_only_words_that_stand_once_are_copied():
    words = {"dog": "Hund"}
    for pair in (("dog and dog", "Hund"), ("dog", "Hund Hund"), ("dog", "Hunde"), ("dogs", "Hund")):
        assert all(changed(*pair, (number,), words) == pair for number in range(200))


def test_words_are_without_punctuation_at_their_edges():
    text = "«Don't», said (3.5%) हिन्दी! ... l'été"
    assert [text[start:end] for start, end in word_spans(text)] == ["Don't", "said", "3.5", "हिन्दी", "l'été"]


def test_words_that_translate_each_other_are_found():
    drawn = random.Random(3)
    content = [f"w{number}" for number in range(60)]
    pairs = []
    for number in range(1500):
        words = drawn.sample(content, drawn.randint(3, 8))
        # Two words for one, a word for nothing, names that are rare, and words that are alike by chance.
        others = [drawn.choice(["va", "vb", "vc"]) if word == "w0" else word.replace("w", "v") for word in words]
        name = [f"Name{number}"] if number % 9 == 0 else []
        drawn.shuffle(others)
        pairs.append((" ".join(["the", *words, *name, "die"]) + ".", " ".join([*name, *others, "die", "er"]) + "!"))
    found, linked = find_copied_words(pairs)
    expected = {word: word.replace("w", "v") for word in content[1:]}
    assert expected.items() <= found.items()
    assert all(found[f"Name{number}"] == f"Name{number}" for number in range(0, 1500, 9))
    assert "w0" not in found
    assert len(set(found.values())) == len(found)
    assert {("w0", "va"), ("w0", "vb"), ("w0", "vc")} <= linked
    assert not any(one.startswith("w") != other.startswith("v") for one, other in linked)
    assert find_copied_words([("a b", ""), ("", "c")]) == find_copied_words([]) == ({}, frozenset())


def test_identical_words_that_are_mostly_apart_are_not_copied():
    sources = ["the men die", *[f"women sleep {number}" for number in range(40)]]
    targets = ["die Leute sterben", *[f"die Frauen {number}" for number in range(40)]]
    assert "die" not in find_copied_words(list(zip(sources, targets, strict=True)))[0]


def test_tokenized_pairs_have_reserved_tokens():
    tokenizer = train_tokenizer(iter([SENTENCES]), 400, reserves=True)
    numbers = {tokenizer(character).input_ids[-2] for character in RESERVED}
    pairs = Dataset.from_dict({"source": ["The {name} sleeps."] * 400, "target": ["{name} schläft."] * 400})
    plain, copying = (PairTokenizer(tokenizer, tokenizer, 99, 99, copies=copies) for copies in (None, Copies(1, {})))
    assert plain.key() != copying.key()
    rows = tokenize_pairs(pairs, copying, "train")
    assert rows.column_names == tokenize_pairs(pairs, plain, "train").column_names
    both = [(numbers & set(row["input_ids"]), numbers & set(row["labels"])) for row in rows]
    assert all(source == target and len(source) == 1 for source, target in both)
    assert len({number for source, _ in both for number in source}) == 16


# -- runs --------------------------------------------------------------------------------------------------------------


def facts(run) -> dict:
    return json.loads((run / "tokenizer_config.json").read_text())


def own_pairs(folder, pairs, sides=("en", "de")) -> list[str]:
    for side, texts in zip(sides, zip(*pairs, strict=True), strict=True):
        (folder / f"train.{side}").write_text("".join(f"{text}\n" for text in texts))
    files = [f"data.{name}_files=null" for name in ("validation", "test")]
    return [f"data.train_files={folder / 'train'}", *files]


def test_runs_store_what_their_models_learn(trained, tmp_path):
    assert facts(trained)["reserved"] == 16
    assert facts(trained)["splits_lines"] is True
    short = ["optimization.max_steps=1"]
    text = quick_run(tmp_path / "text", *short, "data.kept_words=false")
    assert "reserved" not in facts(text)
    assert facts(text)["splits_lines"] is True
    start = [*short, f"model.start_from={trained}", "model.overrides={}"]
    assert facts(quick_run(tmp_path / "continued", *start))["reserved"] == 16
    assert facts(quick_run(tmp_path / "changed", *start, "data.kept_words=false"))["reserved"] == 0


def test_a_new_model_with_the_tokenizer_of_another_copies(trained, tmp_path):
    """As the models of `scratch improve` do."""
    adopted = ["optimization.max_steps=1", f"tokenizer.existing={trained}"]
    assert facts(quick_run(tmp_path / "run", *adopted))["reserved"] == 16
    assert facts(quick_run(tmp_path / "text", *adopted, "data.kept_words=false"))["reserved"] == 0


def test_a_run_without_languages_goes_on_copying(trained, tmp_path):
    """It trains a translator as it was, and so do its texts' rules."""
    pairs = own_pairs(tmp_path, [(f"A {{name}} {n}.", f"Ein {{name}} {n}.") for n in range(100)], ("source", "target"))
    start = [f"model.start_from={trained}", "model.overrides={}", "optimization.max_steps=1"]
    run_training(*SMALL_RUN, *pairs, *NO_LANGUAGES, *start, f"output_dir={tmp_path / 'run'}")
    names = ("reserved", "splits_lines", "source_lang", "target_lang")
    assert [facts(tmp_path / "run")[name] for name in names] == [16, True, "en", "de"]


def test_scores_are_of_what_users_get_where_languages_decide(tmp_path):
    """Sentences of Chinese are joined without spaces, and "3. Mai" ends none in German."""
    pairs = [(f"Eine Katze {n}.", f"一只猫 {n}。") for n in range(100)]
    options = own_pairs(tmp_path, pairs, ("de", "zh"))
    for side, text in {"de": "Die Katze schläft. Der Hund am 3. Mai.", "zh": "一只猫。"}.items():
        (tmp_path / f"test.{side}").write_text(f"{text}\n" * 5)
    options += [f"data.test_files={tmp_path / 'test'}", "data.source_language=de", "data.target_language=zh"]
    run_training(*SMALL_RUN, *options, f"output_dir={tmp_path / 'run'}")
    (line,) = set((tmp_path / "run" / "translations" / "test.txt").read_text().splitlines())
    translator = Translator.load([str(tmp_path / "run")])
    sentences = ["Die Katze schläft.", "Der Hund am 3. Mai."]
    assert line == "".join(best_texts(translator.translate(sentences, sentences="line")))
    assert [line] == best_texts(translator.translate([" ".join(sentences)]))


def test_lines_of_several_sentences_are_not_split(tmp_path, capsys):
    pairs = [(f"A cat {n}. A dog {n}." if n % 5 == 0 else f"A cat {n}.", f"Eine Katze {n}.") for n in range(100)]
    run_training(*SMALL_RUN, *own_pairs(tmp_path, pairs), "optimization.max_steps=1", f"output_dir={tmp_path / 'run'}")
    assert facts(tmp_path / "run")["splits_lines"] is False
    assert "have several sentences" in capsys.readouterr().err


def test_pairs_without_words_to_copy_stay_text(tmp_path, capsys):
    """As in languages that write no spaces between words."""
    drawn = random.Random(1)
    pairs = [("".join(drawn.choices("abcdefgh", k=9)), "".join(drawn.choices("ABCDEFGH", k=9))) for _ in range(300)]
    run_training(*SMALL_RUN, *own_pairs(tmp_path, pairs), "optimization.max_steps=1", f"output_dir={tmp_path / 'run'}")
    assert "reserved" not in facts(tmp_path / "run")
    assert "too few training pairs" in capsys.readouterr().err


def test_the_log_counts_kept_words(tmp_path, capsys):
    pairs = [(f"A {{name}} {n}.", f"Ein {{name}} {n}." if n % 4 else f"Ein {n}.") for n in range(100)]
    options = own_pairs(tmp_path, pairs)
    run_training(*SMALL_RUN, *options, "optimization.max_steps=1", f"output_dir={tmp_path / 'run'}")
    log = capsys.readouterr().err
    assert facts(tmp_path / "run")["reserved"] == 16
    counts = re.search(r"(\d+) of 90 training pairs have kept words.* in (\d+) pairs the kept words .* differ", log)
    assert sum(map(int, counts.groups())) == 90
    assert "words are copied" not in log


def test_word_kinds_and_data_without_languages_have_no_reserved_characters(tmp_path):
    short = [*few_sentences(), "optimization.max_steps=1"]
    words = quick_run(tmp_path / "words", *short, "tokenizer.kind=words")
    assert "reserved" not in facts(words)
    pairs = own_pairs(tmp_path, [(f"A {{name}} {n}.", f"Ein {{name}} {n}.") for n in range(100)], ("source", "target"))
    run_training(*SMALL_RUN, *pairs, *NO_LANGUAGES, "optimization.max_steps=1", f"output_dir={tmp_path / 'none'}")
    assert not {"reserved", "splits_lines"} & facts(tmp_path / "none").keys()
