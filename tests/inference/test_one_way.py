"""
A text has one translation, whichever way it comes in. docs/translate.md has a table of what differs: white space and
numbers before lines (`in_document`).
"""

import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import compress

import pytest
from pages import needs_runtime
from services import post, running
from translators import LEARNT, lines, load, run_translate, same_rows, sure_of, with_kept_words
from waiting import LONGEST

from modeling_scratch.apps.serve.engines import Directions, load_ctranslate2_engine, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.apps.translate.placement import confidence_of
from modeling_scratch.apps.web.export import export_page
from modeling_scratch.inference.translate import Translator
from modeling_scratch.model.kept_words import KEPT, RESERVED, has_reserved
from modeling_scratch.model.text import Reading
from modeling_scratch.model.translations import best_texts

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SENTENCES = [pair["en"] for pair in LEARNT][::4]
ONE, TWO, THREE = SENTENCES[3:6]
WORDS = "{name} {0:.2f} ${x} @{x} #{x} %{x} %s %.2f %.*s %<PRIu64> %1$s %,d %tB %(n)d %@ %% %1 %name% $NAME$ :name"
WORDS += " @:key $t(key) [X4X] {n,number} https://example.org/a_b https://example.org/{id} www.example.org"
WORDS += " me@example.org @anna @user@example.org #tag #tag/nested :smile: v1.2.3 `code`"
KINDS = [*WORDS.split(), "{{ x y }}", "${{ x }}", "{% if x %}", '<x id="1"/>', "`a b`", "{n, plural, one {# file}}"]


def _in_every_place(word: str, sentence: str) -> list[str]:
    first, rest = sentence.split(" ", 1)
    return [f"{word} sleeps.", f"{word} {sentence}", f"{sentence[:-1]} {word}.", f"{first} {word} {rest}"]


KEEPING = [text for place, word in enumerate(KINDS) for text in _in_every_place(word, SENTENCES[place % 20])]
KEEPING += [
    f"{ONE[:-1]} {first}, {second} and {first}!" for first, second in zip(KINDS[::4], KINDS[1::4], strict=False)
]
KEEPING += ["It is%s.", *(f"{{name}} and {word}" for word in KINDS[::8])]
# More than there are reserved characters; between all words; glued to words and to each other.
MANY = [" ".join(f"{{{place}}}" for place in range(count)) for count in (15, 16, 17, 20)]
KEEPING += [*(f"{words} sleep." for words in MANY), " ".join(f"The {{{place}}}" for place in range(20)) + " sleep."]
KEEPING += [" ".join(f"{{{place}}} {word}" for place, word in enumerate(sentence.split())) for sentence in (ONE, THREE)]
KEEPING += [
    "{a}{b} sleeps.",
    "pre{name}post sleeps.",
    "The cat's{name}.",
    "({name}) sleeps.",
    "\u201c{name}\u201d runs.",
]
KEEPING += ["{name}'s cat.", "{name}, come!", "Come, {name}!", "{a}/{b} and {c}-{d}.", "100%s of %d%%", "a{b}c{d}e"]
NUMBERED = [f"1. {ONE} 2. {TWO}", f"2. {TWO}", "1. {name}"]
SEVERAL = [f"{ONE} {TWO}", f"{ONE}  {TWO}\t{THREE}", f"{{name}}: {ONE} {{name}} {TWO} %s", f"{ONE} {{x}}. {TWO}"]
SEVERAL += [f"{ONE} {{x}} {TWO}", f"{ONE} %s %d. {TWO} %s", "{x}. {x} sleeps. {y}!", f"{ONE} ... {TWO}", f"... {ONE}"]
SEVERAL += [f"{ONE} {ONE}", f"Dr. {ONE} {TWO}", f"{ONE} 12:30. {TWO}", f"{ONE} See https://example.org/a.B?C! {TWO}"]
SEVERAL += [f"{ONE}\u3002{TWO}", "A cat! 12:30.", f"{ONE} @anna! {TWO} :smile:", f"{ONE} `x. Y` {TWO}", f"{ONE}{TWO}"]
SEVERAL += [f"{ONE} \u201c{TWO}\u201d {THREE}", f"{ONE[:-1]}? {TWO[:-1]}! {THREE}", " ".join(SENTENCES), *NUMBERED]
WITHOUT_LETTERS = [
    "...",
    "?!",
    "{name}",
    "%s %d",
    "12:30",
    "{a}, {b}!",
    "\u2014",
    "-- %s --",
    "\u20ac %",
    "\u260e \U0001f600",
]
WITHOUT_LETTERS += ["7", "\u0663", "<> & {}", "\u3002", "\u00bd", "{a}{b}{c}", ":smile: :smile:", "1."]
INVISIBLE = ["\u200b", "\u2060 \ufeff"]
BLANK = ["", " ", "\t", "\u00a0", "\u3000", " {name} ", "\u200b...\u200b", "\u00ad{name}", *INVISIBLE]
SPACED = ["The\u00ad cat\u200b sleeps.", " We  see\tit. ", "\u200bThe cat \u200b{name}\u200b sleeps."]
SPACED += ["The\u00a0cat\u3000{name}\u2003sleeps.", "Caf\u00e9 {name}.", "The cat sleeps.\ufeff", f"{ONE}\r"]
SCRIPTS = [
    "\u65e5\u672c\u8a9e",
    "\u65e5{name}\u672c\u3002\u732b\u3002",
    "\u732b\u304c{name}\u3092\u3002\u72ac\u3082\u3002",
]
SCRIPTS += [
    "\u4f60\u597d{a}\uff0c{b}\uff01",
    "\u044f \u0432\u0438\u0436\u0443 {name}.",
    "\u041e\u043d. \u041e\u043d {x}.",
]
SCRIPTS += ["\u0647\u0644 {name}\u061f \u0646\u0639.", "\u05e9\u05dc {name}", "\u202b\u05e9\u05dc\u05d5\u05dd\u202c %s"]
SCRIPTS += ["\U0001f468\u200d\U0001f469\u200d\U0001f467 {name} \U0001f600", "\u0928\u092e {name}\u0964 \u0939\u093e"]
SCRIPTS += ["\u0e2a\u0e27 {name}", "\ud55c {name}\ub294.", "\U0001d400 {name} \U0001d401."]
# A source may have the characters themselves, and others for private use.
RAW = [f"Is {RESERVED[2]} here?", f"{RESERVED[0]} {{name}} {RESERVED[0]}", f"{RESERVED[1]}{RESERVED[0]} sleeps."]
RAW += [f"The {RESERVED[3]} {{a}} {RESERVED[3]} runs. {RESERVED[0]}!", RESERVED[0], f"We run {RESERVED[15]}."]
RAW += ["\U0010ff10 sleeps {name}.", "\U0010fffd {name}."]
TEXTS = [*SENTENCES, *KEEPING, *SEVERAL, *WITHOUT_LETTERS, *BLANK, *SPACED, *SCRIPTS, *RAW]
# Unlike all that the model has learnt: hypotheses of other lengths are as good, and the search of CTranslate2 ends
# after a number of them.
UNLIKE = {*SCRIPTS, *SPACED, f"{ONE}\u3002{TWO}", "{name}'s cat."}


@pytest.fixture(scope="module")
def translator() -> Translator:
    translator = Translator.load([str(with_kept_words())])
    assert (translator.rules.reserved, translator.rules.splits_lines) == (len(RESERVED), True)
    return translator


@pytest.fixture(scope="module")
def expected(translator) -> list[str]:
    assert len(TEXTS) == len(set(TEXTS)) == 300
    return best_texts(translator.translate(TEXTS))


@pytest.fixture(scope="module")
def in_document(expected) -> list[str]:
    """What documents, service and page write: white space stays, and a number before a line is not read."""
    of = dict(zip(TEXTS, expected, strict=True))
    of |= {NUMBERED[0]: f"1. {of[ONE]} {of[NUMBERED[1]]}", NUMBERED[1]: f"2. {of[TWO]}", NUMBERED[2]: NUMBERED[2]}
    of |= {text: text for text in INVISIBLE}
    return [of[text] for text in TEXTS]


def spaced(texts: list[str]) -> list[str]:
    return [" ".join(text.split()) for text in texts]


def different(found: list[str], expected: list[str], texts: list[str] = TEXTS) -> dict[str, tuple[str, str]]:
    pairs = zip(texts, spaced(found), spaced(expected), strict=True)
    return {text: (one, other) for text, one, other in pairs if one != other}


def sure_of_whole(translator: Translator) -> list[bool]:
    """Which texts every runtime must translate in the same way, in float32: no output is cut or a near-tie."""
    reading = Reading(TEXTS, translator.rules)
    sure = [True] * len(TEXTS)
    for owner, is_sure in zip(reading.owners, sure_of(with_kept_words(), reading.inputs), strict=True):
        sure[owner] &= is_sure
    return [is_sure and not best.is_cut for is_sure, (best,) in zip(sure, translator.translate(TEXTS), strict=True)]


def test_each_kept_word_comes_back_once_and_unchanged(expected):
    def kept(text: str) -> list[str]:
        return sorted(text[start:end] for start, end in KEPT.spans(text))

    # Put beside each other, some become others.
    joined = {text for text in TEXTS if "{a}{b}" in text or "%d%%" in text}
    found = {text: made for text, made in zip(TEXTS, expected, strict=True) if kept(text) != kept(made)}
    assert found.keys() <= joined
    assert not any(has_reserved(made) for text, made in zip(TEXTS, expected, strict=True) if not has_reserved(text))


def test_several_sentences_are_translated_one_by_one(translator, expected):
    of = dict(zip(TEXTS, expected, strict=True))
    assert of[f"{ONE} {TWO}"] == f"{of[ONE]} {of[TWO]}"
    assert of[" ".join(SENTENCES)] == " ".join(of[sentence] for sentence in SENTENCES)
    whole = load(with_kept_words())(f"{ONE} {TWO}", sentences="line")[0]["translation_text"]
    assert whole != of[f"{ONE} {TWO}"]
    assert whole == best_texts(translator.translate([f"{ONE} {TWO}"], sentences="line"))[0]


def test_a_text_alone_has_the_translation_that_it_has_among_others(translator, expected):
    assert [best_texts(translator.translate([text]))[0] for text in TEXTS[::3]] == expected[::3]


# Runs without this project.
ALONE = """
import json, sys
sys.modules["modeling_scratch"] = None
from transformers import pipeline
translator = pipeline("translation", model=sys.argv[1], trust_remote_code=True)
assert type(translator).__module__.startswith("transformers_modules.")
print(json.dumps([result["translation_text"] for result in translator(json.load(sys.stdin))]))
"""


def test_the_pipeline_gives_the_same_with_transformers_alone(expected, tmp_path):
    command = [sys.executable, "-c", ALONE, str(with_kept_words())]
    done = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


def test_the_command_gives_the_same_for_lines_and_for_text(expected, in_document, monkeypatch):
    code, output, _ = run_translate(monkeypatch, with_kept_words(), lines(*TEXTS))
    assert (code, output.decode().split("\n")[:-1]) == (0, expected)
    code, output, _ = run_translate(monkeypatch, with_kept_words(), lines(*TEXTS), format="text")
    assert different(output.decode().replace("\r\n", "\n").split("\n")[:-1], in_document) == {}


def test_a_page_has_the_kept_words_of_lines(expected, monkeypatch):
    of = dict(zip(TEXTS, expected, strict=True))
    texts = [text for text in KEEPING if text.isascii() and not set(text) & set("<>&\"'")]
    texts = [text for text in texts if len(KEPT.spans(text)) <= len(RESERVED)]  # of more, which is which may differ
    page = "".join(f"<p>{text}</p>\n" for text in texts)
    code, output, _ = run_translate(monkeypatch, with_kept_words(), page.encode(), format="html")
    found = re.findall("<p>(.*)</p>", output.decode())
    assert code == 0
    assert different(found, [of[text] for text in texts], texts) == {}
    assert len(texts) > 100


def by_service(name, engine) -> tuple[list[str], list[float]]:
    """The translations, and the confidences."""
    directions = Directions([load_direction(str(name), engine)])
    with running(Service(directions, Limits())) as url:
        code, answer = post(f"{url}/translate", {"q": TEXTS, "source": "en", "target": "de"})
    assert code == 200
    return answer["translatedText"], answer["confidence"]


def test_the_service_gives_the_same(translator, in_document):
    found, confidences = by_service(with_kept_words(), load_torch_engine)
    assert different(found, in_document) == {}
    same_confidences(translator, confidences, [True] * len(TEXTS))


def test_requests_say_how_lines_are_split_and_answers_why_kept_words_are_doubtful(translator):
    texts = [text for text in TEXTS if text != " ".join(SENTENCES)]  # too long to be read as one line
    made = translator.translate(texts, sentences="line")
    lost = [text for text, (best,) in zip(texts, made, strict=True) if best.lost_words]
    assert 0 < len(lost) < len(texts) / 2
    directions = Directions([load_direction(str(with_kept_words()), load_torch_engine)])
    with running(Service(directions, Limits())) as url:

        def answer(q, **more) -> tuple[int, dict]:
            return post(f"{url}/translate", {"q": q, "source": "en", "target": "de", "sentences": "line", **more})

        assert set(answer(lost)[1]["doubt"]) <= {"kept-word", "language"}
        assert "kept-word" not in answer([text for text in texts if text not in lost])[1]["doubt"]
        whole = load(with_kept_words())(f"{ONE} {TWO}", sentences="line")[0]["translation_text"]
        assert answer(f"{ONE} {TWO}")[1]["translatedText"] == whole
        wrong = "Invalid request: sentences is split or line, not both"
        assert answer(ONE, sentences="both") == (400, {"error": wrong})


def test_the_service_gives_the_same_on_ctranslate2(translator, in_document, tmp_path):
    pytest.importorskip("ctranslate2")
    from modeling_scratch.apps.convert.ctranslate2 import write_ctranslate2

    write_ctranslate2(str(with_kept_words()), tmp_path / "converted")
    found, confidences = by_service(tmp_path / "converted", load_ctranslate2_engine)
    sure = [known and text not in UNLIKE for text, known in zip(TEXTS, sure_of_whole(translator), strict=True)]
    assert sum(sure) > 200
    columns = (list(compress(column, sure)) for column in (found, in_document, TEXTS))
    assert different(*columns) == {}
    same_confidences(translator, confidences, sure)


def same_confidences(translator: Translator, found: list[float], sure: list[bool]) -> None:
    made = [confidence_of(best) for (best,) in translator.translate(TEXTS, scores=True)]
    read_alike = [known and text not in NUMBERED for known, text in zip(sure, TEXTS, strict=True)]
    expected = pytest.approx(list(compress(made, read_alike)), abs=1e-3)
    assert list(compress(found, read_alike)) == expected
    assert len(set(made)) > 40


def test_scores_confidences_and_n_best_lists_are_the_same(translator, monkeypatch):
    options = {"num_beams": 3, "num_return_sequences": 3}
    rows = translator.translate(TEXTS, scores=True, **options)
    best = translator.translate(TEXTS, scores=True)
    assert [row[0].text for row in rows] == best_texts(best)
    results = load(with_kept_words())(TEXTS, return_scores=True, return_confidence=True, **options)
    for result, row in zip(results, rows, strict=True):
        assert [each["translation_text"] for each in result] == [each.text for each in row]
        assert [each["score"] for each in result] == pytest.approx([each.score for each in row], abs=1e-3)
        assert [each["confidence"] for each in result] == pytest.approx([confidence_of(each) for each in row], abs=1e-3)
    _, output, _ = run_translate(monkeypatch, with_kept_words(), lines(*TEXTS), scores=True, confidence=True)
    expected = [f"{each.score:.4f}\t{confidence_of(each):.4f}\t{each.text}\n" for (each,) in best]
    same_rows(output, "".join(expected).encode())
    _, output, _ = run_translate(monkeypatch, with_kept_words(), lines(*TEXTS), format="text", confidence=True)
    found = [float(row.split("\t")[0]) for row in output.decode().replace("\r\n", "\n").split("\n")[:-1]]
    same_confidences(translator, found, [True] * len(TEXTS))


@pytest.mark.slow
@needs_runtime
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_gives_the_same(translator, in_document, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    export_page([str(with_kept_words())], tmp_path / "page")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path / "page"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = []
    with sync_api.sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        for text in TEXTS:
            page.fill("#source", text)
            target = page.locator("#target")
            sync_api.expect(target).to_have_attribute("aria-busy", "false", timeout=1000 * LONGEST)
            found.append(target.text_content())
    server.shutdown()
    sure = sure_of_whole(translator)
    columns = (list(compress(column, sure)) for column in (found, in_document, TEXTS))
    assert different(*columns) == {}
