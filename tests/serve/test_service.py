"""The service: what LibreTranslate's clients get, what is refused, and what happens when many ask at once."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from services import connected, get, metric, post, running
from test_translation_pipeline import CORPUS, load, make_folder

from modeling_scratch.errors import UserError
from modeling_scratch.serve.batcher import Batcher, Busy, Gone, Ticket
from modeling_scratch.serve.directions import Directions, load_direction
from modeling_scratch.serve.engines import CTranslate2Engine, Hypothesis, Search, TorchEngine
from modeling_scratch.serve.service import Limits, Service

libretranslatepy = pytest.importorskip("libretranslatepy")
SENTENCES = [pair["en"] for pair in CORPUS if len(pair["en"]) < 50][:40]
LIMITS = Limits(characters=2_000, waiting=500, seconds=30.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models") / "one")


@pytest.fixture(scope="module")
def expected(folder):
    """What the pipeline makes of each sentence."""
    return dict(zip(SENTENCES, (each["translation_text"] for each in load(folder)(SENTENCES)), strict=True))


@pytest.fixture(scope="module")
def directions(folder):
    return Directions(load_direction(f"{pair}={folder}", TorchEngine) for pair in ("en:de", "de:en", "en:fr"))


@pytest.fixture(scope="module")
def url(directions):
    with running(Service(directions, LIMITS)) as url:
        yield url


def translated(url, text, **parameters):
    status, answer = post(f"{url}/translate", {"q": text, "source": "en", "target": "de"} | parameters)
    assert status == 200, answer
    return answer["translatedText"]


def test_a_client_of_libretranslate(url, expected):
    client = libretranslatepy.LibreTranslateAPI(url)
    assert client.translate(SENTENCES[0], "en", "de") == expected[SENTENCES[0]]
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "fr", "name": "French", "targets": []},
    ]
    assert client.detect("Der Lehrer gibt dem Kind heute ein Buch.")[0]["language"] == "de"


def test_a_text_keeps_its_lines_and_spaces(url, expected):
    first, second, third = SENTENCES[:3]
    made = translated(url, f"{first} {second}\n\n  {third}\r\n")
    assert made == f"{expected[first]} {expected[second]}\n\n  {expected[third]}\r\n"


def test_a_page_keeps_its_tags(url, expected):
    first, second = SENTENCES[:2]
    page = f'<p class="a">{first} <img src="x.png"><br>{second}</p><script>{first}</script>'
    made = translated(url, page, format="html")
    assert made == f'<p class="a">{expected[first]} <img src="x.png"><br>{expected[second]}</p><script>{first}</script>'


def test_a_word_is_shown_with_what_it_was_made_from(url, expected):
    parameters = {"sentences": [SENTENCES[0]], "source": "en", "target": "de"}
    (((best,),),) = (post(f"{url}/page/translate", parameters)[1]["translations"],)
    assert "".join(word["text"] for word in best["words"]) == best["text"]
    words = [word for word in best["words"] if word["isWord"]]
    assert [word["text"] for word in words] == best["text"].split()
    for word in words:
        read = [SENTENCES[0][each["start"] : each["end"]] for each in word["from"]]
        assert set(read) <= set(SENTENCES[0].split())
        assert sum(each["weight"] for each in word["from"]) == pytest.approx(1, abs=0.2)


def test_several_texts_at_once_with_alternatives(url, expected):
    parameters = {"q": [*SENTENCES[:2], ""], "source": "en", "target": "de", "alternatives": 2}
    status, answer = post(f"{url}/translate", parameters)
    assert status == 200
    assert answer["translatedText"] == [*(expected[sentence] for sentence in SENTENCES[:2]), ""]
    assert [len(set(each)) for each in answer["alternatives"]] == [2, 2, 1]


def test_the_language_is_detected_among_those_with_the_target(url):
    status, answer = post(f"{url}/translate", {"q": "Der Lehrer schläft heute.", "source": "auto", "target": "en"})
    assert (status, answer["detectedLanguage"]["language"]) == (200, "de")
    status, answer = post(f"{url}/translate", {"q": "Der Lehrer schläft.", "source": "auto", "target": "de"})
    assert (status, answer["detectedLanguage"]) == (200, {"confidence": 100.0, "language": "en"})


def test_forms_and_json_are_the_same(url, expected):
    parameters = {"q": SENTENCES[0], "source": "EN", "target": "de", "alternatives": "0"}
    assert post(f"{url}/translate", parameters, form=True) == (200, {"translatedText": expected[SENTENCES[0]]})


@pytest.mark.parametrize(
    ("path", "parameters", "status", "said"),
    [
        ("/translate", b"{", 400, "not valid JSON"),
        ("/translate", b"[" * 100_000, 413, "too large"),
        ("/translate", b"[" * 30_000, 400, "not valid JSON"),
        ("/translate", b"[1]", 400, "must be an object"),
        ("/translate", b"\xff", 400, "not valid JSON"),
        ("/translate", {"source": "en", "target": "de"}, 400, "q is missing"),
        ("/translate", {"q": 1, "source": "en", "target": "de"}, 400, "q must be a string"),
        ("/translate", {"q": ["a", None], "source": "en", "target": "de"}, 400, "q must be a string"),
        ("/translate", {"q": "\ud800", "source": "en", "target": "de"}, 400, "q is not Unicode"),
        ("/translate", {"q": "a", "target": "de"}, 400, "source is missing"),
        ("/translate", {"q": "a", "source": "en", "target": "xx"}, 400, "en to xx is not served; there is en to de"),
        ("/translate", {"q": "a", "source": "auto", "target": "xx"}, 400, "auto to xx is not served"),
        ("/translate", {"q": "a", "source": "en", "target": "de", "alternatives": -1}, 400, "from 0 to 8"),
        ("/translate", {"q": "a", "source": "en", "target": "de", "format": "pdf"}, 400, "format must be one of text"),
        ("/translate", {"q": "a", "source": "en", "target": "de", "format": [1]}, 400, "format must be a string"),
        ("/translate", {"q": "a " * 1001, "source": "en", "target": "de"}, 413, "2,002 characters"),
        ("/translate", {"q": "ab" * 300, "source": "en", "target": "de"}, 400, "tokens, but the model takes 60"),
        ("/detect", {}, 400, "q is missing"),
        ("/page/translate", {"sentences": "a", "source": "en", "target": "de"}, 400, "must be a list"),
        ("/nothing", {}, 404, "Not Found"),
        ("/languages", {}, 405, "Method Not Allowed"),
    ],
)
def test_what_is_refused(url, path, parameters, status, said):
    found, answer = post(f"{url}{path}", parameters)
    assert (found, said in answer["error"]) == (status, True), answer


def test_a_type_that_is_neither_json_nor_a_form(url):
    with connected(url) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\na")
        assert client.recv(1000).startswith(b"HTTP/1.1 415")


def test_the_page_gets_a_problem_for_a_sentence_and_translations_for_the_others(url, expected):
    parameters = {"sentences": ["ab" * 300, SENTENCES[0]], "source": "en", "target": "de", "numBeams": 3}
    status, answer = post(f"{url}/page/translate", parameters)
    (problem,), (best, *others) = answer["translations"]
    assert (status, best["text"], len(others)) == (200, expected[SENTENCES[0]], 2)
    assert "Split it" in problem["problem"]
    assert all(each["score"] < 0 for each in (best, *others))


def test_a_key(directions):
    with running(Service(directions, LIMITS, key="secret")) as url:
        assert post(f"{url}/translate", {"q": "a", "source": "en", "target": "de"})[0] == 403
        assert post(f"{url}/translate", {"q": "a", "source": "en", "target": "de", "api_key": "wrong"})[0] == 403
        assert post(f"{url}/translate", {"q": "a", "source": "en", "target": "de", "api_key": "secret"})[0] == 200
        assert json.loads(get(f"{url}/frontend/settings"))["keyRequired"] is True
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}


def test_requests_that_come_together_are_translated_together(url, expected):
    batches, sentences = (metric(url, f"scratch_batch_sentences_{what}") for what in ("count", "sum"))
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda sentence: translated(url, sentence), SENTENCES * 4))
    assert found == [expected[sentence] for sentence in SENTENCES * 4]
    made = metric(url, "scratch_batch_sentences_sum") - sentences
    assert made == len(found)
    assert made / (metric(url, "scratch_batch_sentences_count") - batches) > 3


def test_a_client_that_sends_too_slowly_is_told_so(directions):
    with running(Service(directions, Limits(seconds=0.3))) as url, connected(url) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


def test_engines_agree(folder):
    torch_engine, other = TorchEngine(str(folder)), CTranslate2Engine(str(folder))
    search = Search(several=3)
    found = [engine.translate(["", *SENTENCES], search) for engine in (torch_engine, other)]
    for ours, theirs in zip(*found, strict=True):
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-3)
        assert [each.is_cut for each in ours] == [each.is_cut for each in theirs]


def test_a_model_that_does_not_say_its_languages(folder):
    with pytest.raises(UserError, match="does not say its languages; name them, as in en:de="):
        load_direction(str(folder), TorchEngine)


def test_two_models_for_one_direction(directions):
    direction = directions.find("en", "de")
    with pytest.raises(UserError, match="two models translate from en to de"):
        Directions([direction, direction])


class Slow:
    """An engine that translates when it is told to, and fails on one sentence."""

    def __init__(self):
        self.go, self.batches = threading.Event(), []

    def translate(self, sentences, search):
        self.go.wait(10)
        self.batches.append(list(sentences))
        if "bad" in sentences:
            raise RuntimeError("bad")
        return [[Hypothesis(sentence.upper(), 0.0, False)] for sentence in sentences]


@pytest.fixture
def slow():
    engine, batcher = Slow(), Batcher(longest_queue=4)
    yield engine, batcher
    engine.go.set()
    batcher.close()


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_sentence_that_fails_does_not_fail_those_beside_it(slow):
    engine, batcher = slow
    engine.go.set()
    bad, good = (batcher.submit(engine, [sentence], Search())[0] for sentence in ("bad", "good"))
    assert good.result(10)[0].text == "GOOD"
    with pytest.raises(RuntimeError):
        bad.result(10)


def test_a_full_queue_refuses_and_a_request_in_time_does_not_wait_longer(slow):
    engine, batcher = slow
    first = batcher.submit(engine, ["one"], Search())[0]
    wait_until(lambda: first.running())
    waiting = batcher.submit(engine, ["two", "three", "four", "five"], Search())
    with pytest.raises(Busy, match="4 sentences are waiting"):
        batcher.submit(engine, ["six"], Search())
    for future in waiting:
        future.cancel()
    engine.go.set()
    first.result(10)
    wait_until(lambda: batcher.waiting == 0)
    engine.go.clear()
    with pytest.raises(Busy, match=r"not translated within 0\.05 seconds"):
        Ticket(batcher, 0.05).translate(engine, ["seven"], Search())


def test_what_nobody_waits_for_is_not_translated(slow):
    engine, batcher = slow
    first = batcher.submit(engine, ["one"], Search())[0]
    wait_until(lambda: first.running())
    ticket = Ticket(batcher, 10)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(ticket.translate, engine, ["two"], Search())
        wait_until(lambda: batcher.waiting == 1)
        ticket.cancel()
        with pytest.raises(Gone):
            waiting.result(10)
    engine.go.set()
    batcher.submit(engine, ["three"], Search())[0].result(10)
    assert engine.batches == [["one"], ["three"]]
