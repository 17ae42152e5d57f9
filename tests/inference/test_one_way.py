"""A text has one translation, whichever way it comes in. The page's way is tested in tests/apps/web."""

import pytest
from services import post, running
from translators import SENTENCES, lines, load, run_translate, with_kept_words

from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.inference.translate import Translator
from modeling_scratch.model.kept_words import KEPT, RESERVED
from modeling_scratch.model.translations import best_texts

WORDS = ["{name}", "%s", "https://example.org/a_b", "@anna", "v1.2.3", "`a b`", "{{ x y }}", "%1$s", ":smile:", "#tag"]
KEEPING = [f"{word} {SENTENCES[0]}" for word in WORDS] + [f"{SENTENCES[1][:-1]} {word}." for word in WORDS]
KEEPING += [
    SENTENCES[2].replace(" ", f" {first} {second} ", 1) for first, second in zip(WORDS, WORDS[3:], strict=False)
]
KEEPING += [f"{SENTENCES[3]} {{name}}, {{name}}!", "The {name} sleeps.", "{name} sleeps.", f"Is {RESERVED[2]} here?"]
SEVERAL = [
    " ".join(SENTENCES[:2]),
    "  ".join(SENTENCES[2:5]),
    f"Dr. {SENTENCES[0]} ... {SENTENCES[1]}",
    "A cat! 12:30.",
]
SEVERAL += [f"{{name}}: {SENTENCES[0]} {{name}} {SENTENCES[1]} %s", f"{SENTENCES[0]} {SENTENCES[0]}"]
OTHERS = ["...", "?!", "{name}", "%s %d", "12:30", "The\u00ad cat\u200b sleeps.", " We  see\tit. ", "\u65e5\u672c"]
TEXTS = [*SENTENCES, *KEEPING, *SEVERAL, *OTHERS]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    translator = Translator.load([str(with_kept_words())])
    assert (translator.rules.reserved, translator.rules.splits_lines) == (len(RESERVED), True)
    return best_texts(translator.translate(TEXTS))


def test_each_kept_word_comes_back_once_and_unchanged(expected):
    def kept(text: str) -> list[str]:
        return sorted(text[start:end] for start, end in KEPT.spans(text))

    assert {text: kept(made) for text, made in zip(TEXTS, expected, strict=True) if kept(text) != kept(made)} == {}


def test_several_sentences_are_translated_one_by_one(expected):
    of = dict(zip(TEXTS, expected, strict=True))
    assert of[SEVERAL[0]] == f"{of[SENTENCES[0]]} {of[SENTENCES[1]]}"
    assert of[SEVERAL[1]] == " ".join(of[sentence] for sentence in SENTENCES[2:5])
    whole = load(with_kept_words())(SEVERAL[0], sentences="line")[0]["translation_text"]
    assert whole != of[SEVERAL[0]]
    assert whole == best_texts(Translator.load([str(with_kept_words())]).translate(SEVERAL[:1], sentences="line"))[0]


def test_the_pipeline_gives_the_same(expected):
    results = load(with_kept_words())(TEXTS)
    assert [result["translation_text"] for result in results] == expected


def test_the_command_gives_the_same_for_lines_and_for_text(expected, monkeypatch):
    code, output, _ = run_translate(monkeypatch, with_kept_words(), lines(*TEXTS))
    assert (code, output.decode().split("\n")[:-1]) == (0, expected)
    code, output, _ = run_translate(monkeypatch, with_kept_words(), lines(*TEXTS), format="text")
    found = [" ".join(line.split()) for line in output.decode().split("\n")[:-1]]  # of text, white space stays
    assert found == [" ".join(text.split()) for text in expected]


def test_the_service_gives_the_same(expected):
    directions = Directions([load_direction(str(with_kept_words()), load_torch_engine)])
    with running(Service(directions, Limits())) as url:
        code, answer = post(f"{url}/translate", {"q": TEXTS, "source": "en", "target": "de"})
        line = {"q": SEVERAL[0], "source": "en", "target": "de", "sentences": "line"}
        whole = post(f"{url}/translate", line)
        wrong = post(f"{url}/translate", line | {"sentences": "both"})
    assert code == 200
    found = [" ".join(text.split()) for text in answer["translatedText"]]
    assert found == [" ".join(text.split()) for text in expected]
    found = load(with_kept_words())(SEVERAL[0], sentences="line")[0]["translation_text"]
    assert whole == (200, {"translatedText": found})
    assert wrong == (400, {"error": "Invalid request: sentences is split or line, not both"})
    made = Translator.load([str(with_kept_words())]).translate(TEXTS)
    lost = {text for text, row in zip(TEXTS, made, strict=True) if row[0].lost_words}
    assert {text for text, doubt in zip(TEXTS, answer["doubt"], strict=True) if doubt == "kept-word"} == lost
    assert lost
    assert answer["doubt"].count(None) == len(TEXTS) - len(lost)
