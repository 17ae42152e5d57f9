"""The service: answers to LibreTranslate's clients, refusals, and many requests at once."""

import json
import logging
import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import compress
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import psutil
import pytest
import torch
from services import Slow, connected, get, metric, post, running, sent
from translators import CORPUS, load, make_folder, sure_of

from modeling_scratch.apps.documents.document import read_document
from modeling_scratch.apps.serve.engines import CTranslate2Engine, Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.readers import Readers
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.commands import serve
from modeling_scratch.errors import UserError

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
    return Directions(load_direction(f"{pair}={folder}", load_torch_engine) for pair in ("en:de", "de:en", "en:fr"))


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


def test_positions_are_those_of_javascript(url):
    """Which counts a character beyond the basic plane as two."""
    sentences = [f"\U0001f600 {SENTENCES[0]}"]
    answer = post(f"{url}/page/translate", {"sentences": sentences, "source": "en", "target": "de"})[1]
    units = sentences[0].encode("utf-16-le")
    spans = {(each["start"], each["end"]) for word in answer["translations"][0][0]["words"] for each in word["from"]}
    assert spans
    assert {units[2 * start : 2 * end].decode("utf-16-le") for start, end in spans} <= set(sentences[0].split())


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
    assert (status, answer["detectedLanguage"]["language"]) == (200, "de")
    assert answer["translatedText"] == "Der Lehrer schläft."  # as for LibreTranslate


def test_a_service_of_one_model_detects_among_all_languages(directions, expected):
    """A language that it does not serve leaves no probability for those that it serves."""
    english, german, chinese = (
        "The teacher gives the child a book.",
        "Der Lehrer gibt dem Kind ein Buch.",
        "我们明天去北京。" * 20,
    )
    with running(Service(Directions([directions.find("en", "de")]), LIMITS)) as url:
        for text, likely in ((english, "en"), (german, "de"), (chinese, None)):
            status, found = post(f"{url}/detect", {"q": text})
            assert status == 200
            assert {each["language"] for each in found} == {"en", "de"}
            sure = {each["language"]: each["confidence"] for each in found}
            assert [each for each in sure if sure[each] > 50] == [likely] * (likely is not None)
            assert sum(sure.values()) <= 100 if likely else set(sure.values()) == {0}
            answer = post(f"{url}/translate", {"q": text, "source": "auto", "target": "de"})[1]
            detected = answer["detectedLanguage"]
            assert detected == {"language": likely or "en", "confidence": sure[likely or "en"]}
            assert (answer["translatedText"] == text) == (likely == "de")


def test_forms_and_json_are_the_same(url, expected):
    parameters = {"q": SENTENCES[0], "source": "EN", "target": "de", "alternatives": "0"}
    assert post(f"{url}/translate", parameters, form=True) == (200, {"translatedText": expected[SENTENCES[0]]})


def test_a_form_in_utf_8_and_with_a_name_twice(url):
    """As `curl -d` sends it, without escapes; of two, LibreTranslate takes the first."""
    text = "Où est la forêt ? 森林"
    status, answer = post(f"{url}/translate", {"q": text, "source": "en", "target": "de"})
    for form in (f"q={text}&source=en&target=de", f"q={text}&q=b&source=en&target=de"):
        assert post(f"{url}/translate", form.encode(), form=True) == (status, answer)
    assert post(f"{url}/detect", f"q={text}".encode(), form=True)[0] == 200
    for wrong in (b"q=a\xff&source=en&target=de", b"q=%ff&source=en&target=de", b"&".join([b"a=b"] * 30)):
        status, answer = post(f"{url}/translate", wrong, form=True)
        assert (status, "the form cannot be read" in answer["error"]) == (400, True)


def test_into_its_own_language_a_text_stays(url):
    parameters = {"q": ["A  bird.", "b"], "source": "en", "target": "en"}
    assert post(f"{url}/translate", parameters) == (200, {"translatedText": ["A  bird.", "b"]})
    parameters |= {"q": "A bird.", "alternatives": 2}
    expected = {"translatedText": "A bird.", "alternatives": ["A bird."] * 2}
    assert post(f"{url}/translate", parameters) == (200, expected)
    assert post(f"{url}/translate", parameters | {"source": "EN"}) == (200, expected)
    assert post(f"{url}/translate", {"q": "a", "source": "xx", "target": "xx"})[0] == 400


@pytest.mark.parametrize(
    ("path", "parameters", "status", "message"),
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
        ("/translate", {"q": [""] * 501, "source": "en", "target": "de"}, 413, "501 texts; a request may have 500"),
        ("/page/translate", {"sentences": ["a"] * 501, "source": "en", "target": "de"}, 413, "501 texts"),
        ("/translate", {"q": "ab" * 300, "source": "en", "target": "de"}, 400, "tokens, and the model takes 60"),
        ("/translate", {"q": "a\n", "source": "en", "target": "de", "format": "srt"}, 400, "no subtitles"),
        ("/detect", {}, 400, "q is missing"),
        ("/page/translate", {"sentences": "a", "source": "en", "target": "de"}, 400, "must be a list"),
        ("/nothing", {}, 404, "Not Found"),
        ("/languages", {}, 405, "Method Not Allowed"),
    ],
)
def test_wrong_requests_are_refused(url, path, parameters, status, message):
    found, answer = post(f"{url}{path}", parameters)
    assert (found, message in answer["error"]) == (status, True), answer


def test_a_type_that_is_neither_json_nor_a_form(url):
    with connected(url) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\na")
        assert client.recv(1000).startswith(b"HTTP/1.1 415")


def test_the_page_gets_a_problem_for_a_sentence_and_translations_for_the_others(url, expected):
    parameters = {"sentences": ["ab" * 300, SENTENCES[0]], "source": "en", "target": "de", "numBeams": 3}
    status, answer = post(f"{url}/page/translate", parameters)
    (problem,), (best, *others) = answer["translations"]
    assert (status, best["text"], len(others)) == (200, expected[SENTENCES[0]], 2)
    assert "split it" in problem["problem"]
    assert all(each["score"] < 0 for each in (best, *others))


def test_a_key(directions, capsys):
    with running(Service(directions, LIMITS, key="secret")) as url:
        assert post(f"{url}/translate", {"q": "a", "source": "en", "target": "de"})[0] == 403
        assert post(f"{url}/translate", {"q": "a", "source": "en", "target": "de", "api_key": "wrong"})[0] == 403
        assert post(f"{url}/translate", {"q": "a", "source": "en", "target": "de", "api_key": "secret"})[0] == 200
        assert json.loads(get(f"{url}/frontend/settings"))["keyRequired"] is True
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}
    with pytest.raises(SystemExit):
        serve.main(
            ["no-model"], port=0, api_key=b"secret \xff".decode(errors="surrogateescape")
        )  # as in the environment
    assert capsys.readouterr().err.splitlines() == [
        "error: --api-key: it must be UTF-8 text, since requests cannot send anything else"
    ]


def test_requests_that_come_together_are_translated_together(url, expected):
    batches, sentences = (metric(url, f"scratch_batch_sentences_{what}") for what in ("count", "sum"))
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda sentence: translated(url, sentence), SENTENCES * 4))
    assert found == [expected[sentence] for sentence in SENTENCES * 4]
    made = metric(url, "scratch_batch_sentences_sum") - sentences
    assert made == len(found)
    assert made / (metric(url, "scratch_batch_sentences_count") - batches) > 3


def test_a_client_that_sends_too_slowly_gets_408(directions):
    with running(Service(directions, Limits(seconds=0.3))) as url, connected(url) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_body_is_read_to_its_end_before_it_is_refused(url):
    assert post(f"{url}/translate", b"a" * 10_000_000)[0] == 413


def test_a_form_of_several_parts(url, expected):
    """In UTF-8, whatever codec it names: some take minutes."""
    parts = {"q": SENTENCES[0], "source": "en", "target": "de"}
    body = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{part}\r\n' for name, part in parts.items()
    )
    for suffix, more, status in (("", b"", 200), ("; charset=punycode", b"", 200), ("", b"\xff", 400)):
        headers = {"Content-Type": f"multipart/form-data; boundary=x{suffix}"}
        whole = body.encode().replace(b"\r\n--x", more + b"\r\n--x", 1) + b"--x--\r\n"
        found, answer = sent(Request(f"{url}/translate", data=whole, headers=headers))
        assert (found, answer.get("translatedText")) == (status, None if more else expected[SENTENCES[0]])


def test_parameters_in_the_address(url, expected):
    query = urlencode({"q": SENTENCES[0], "source": "en", "target": "de"})
    assert sent(Request(f"{url}/translate?{query}", data=b""))[1] == {"translatedText": expected[SENTENCES[0]]}
    for wrong in ("q=%ff", "q=%ed%a0%80", "api_key=%ff"):
        status, answer = sent(Request(f"{url}/translate?source=en&target=de&{wrong}", data=b"q=a"))
        assert (status, "the form cannot be read" in answer["error"]) == (400, True)


def test_pages_of_an_origin_may_call(directions):
    with running(Service(directions, LIMITS, origins=("https://example.org",))) as url:
        for origin, allowed in (("https://example.org", "https://example.org"), ("https://example.com", None)):
            with urlopen(Request(f"{url}/languages", headers={"Origin": origin})) as response:
                assert response.headers["Access-Control-Allow-Origin"] == allowed


def test_the_language_of_each_text_is_detected(url, expected):
    german, english = "Der Lehrer gibt dem Kind heute ein Buch.", SENTENCES[0]
    texts = [german, english, german]
    for target, languages in (("en", ["de", "en", "de"]), ("fr", ["en", "en", "en"]), ("de", ["de", "en", "de"])):
        _, answer = post(f"{url}/translate", {"q": texts, "source": "auto", "target": target})
        assert [each["language"] for each in answer["detectedLanguage"]] == languages
        for text, language, found in zip(texts, languages, answer["translatedText"], strict=True):
            alone = {"q": text, "source": language, "target": target}
            assert post(f"{url}/translate", alone)[1]["translatedText"] == found
            assert (found == text) == (language == target)


def test_the_page_is_served(url):
    for path, kind, inside in (
        ("", "text/html", b"<!doctype html>"),
        ("page.css", "text/css", b"body {"),
        ("page.js", "text/javascript", b"class Page"),
        ("service.js", "text/javascript", b"Service"),
    ):
        with urlopen(f"{url}/{path}", timeout=60) as answer:
            assert answer.headers.get_content_type() == kind
            assert inside in answer.read()
    described = json.loads(get(f"{url}/model.json"))
    assert described["service"] == {"isKeyNeeded": False, "mostCharacters": 2_000}
    assert [each["languages"] for each in described["directions"]] == [["en", "de"], ["de", "en"], ["en", "fr"]]


def test_the_page_s_sentences_are_those_that_are_translated(url):
    text = "Dr. Smith sleeps. ***\n\n A bird."
    parts = post(f"{url}/page/sentences", {"text": text, "source": "en"})[1]["parts"]
    assert "".join(part for part, _ in parts) == text
    assert [part for part, is_sentence in parts if is_sentence] == ["Dr. Smith sleeps.", "A bird."]


def test_engines_agree(folder):
    settings, found = {"num_return_sequences": 3, "num_beams": 3, "scores": True}, []
    for engine in (load_torch_engine(str(folder)), CTranslate2Engine(str(folder))):
        found.append(engine.translate_batch(SENTENCES, engine.tokenize(SENTENCES), **settings))
    for ours, theirs in compress(zip(*found, strict=True), sure_of(folder, SENTENCES, num_return_sequences=3)):
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-3)
        assert [each.is_cut for each in ours] == [each.is_cut for each in theirs]


def test_threads_of_ctranslate2(folder, monkeypatch):
    """All of them, though PyTorch is kept to one while a service forks its workers."""
    made, construct = [], CTranslate2Engine.__init__
    monkeypatch.setattr(
        CTranslate2Engine,
        "__init__",
        lambda self, *given, **options: made.append(self) or construct(self, *given, **options),
    )
    monkeypatch.setattr(serve, "_run", lambda app, listener: None)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        serve.main([f"en:de={folder}", f"de:en={folder}"], port=0, engine="ctranslate2")
    finally:
        torch.set_num_threads(before)
    assert [each.translator.num_translators for each in made] == [3, 3]


def test_a_model_that_does_not_name_its_languages(folder):
    with pytest.raises(UserError, match="does not name its languages; name them, as in en:de="):
        load_direction(str(folder), load_torch_engine)


def test_two_models_for_one_direction(directions):
    direction = directions.find("en", "de")
    with pytest.raises(UserError, match="two models translate from en to de"):
        Directions([direction, direction])


def test_a_request_that_waits_too_long_and_one_whose_client_goes(directions, slow_engine):
    direction = replace(directions.find("en", "de"), engine=slow_engine)
    with running(Service(Directions([direction]), Limits(seconds=0.5))) as url:
        body = json.dumps({"q": "a", "source": "en", "target": "de"}).encode()
        request = Request(f"{url}/translate", data=body, headers={"Content-Type": "application/json"})
        with pytest.raises(HTTPError) as late:
            urlopen(request, timeout=10)
        assert (late.value.code, late.value.headers["Retry-After"]) == (429, "1")
        with connected(url) as client:
            head = (
                f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            time.sleep(0.1)
        wait_until(lambda: 'status="499"' in get(f"{url}/metrics"))
        slow_engine.go.set()


def test_a_failure_is_counted_and_the_others_are_served(directions, slow_engine):
    direction = replace(directions.find("en", "de"), engine=slow_engine)
    slow_engine.go.set()
    with running(Service(Directions([direction]), LIMITS)) as url:
        assert post(f"{url}/translate", {"q": "bad", "source": "en", "target": "de"})[0] == 500
        assert 'path="/translate",status="500"} 1.0' in get(f"{url}/metrics")
        assert translated(url, "good") == "GOOD"
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}


@pytest.fixture
def slow_engine():
    engine = Slow()
    yield engine
    engine.go.set()


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


LONG = "<p><b>?</b></p>"  # nothing to translate, and much to read


def test_documents_are_read_by_other_processes(directions):
    """So that this process can answer others, whatever a text does to a parser."""
    page = LONG * 5_000
    parameters = {"q": page, "source": "en", "target": "de", "format": "html"}
    with running(Service(directions, Limits(characters=100_000))) as url:
        started = time.process_time()
        assert post(f"{url}/translate", parameters) == (200, {"translatedText": page})
        ours = time.process_time() - started
    started = time.process_time()
    read_document(page, "html")
    assert ours < (time.process_time() - started) / 3


def test_a_text_that_takes_too_long_to_read_is_refused_and_others_are_read(directions, slow_engine):
    slow_engine.go.set()
    service = Service(Directions([replace(directions.find("en", "de"), engine=slow_engine)]), Limits(characters=10**7))
    service.readers = Readers(0.5)
    parameters = {"q": LONG * 200_000, "source": "en", "target": "de", "format": "html"}
    with running(service) as url:
        for _ in range(3):  # more than there are processes
            status, answer = post(f"{url}/translate", parameters)
            assert (status, answer["error"]) == (400, "this takes more than 0.5 seconds to read; send less at once")
        assert translated(url, "a\n" * 1_000) == "A\n" * 1_000


def test_a_service_ends_while_it_reads_for_a_client_that_has_gone(directions):
    body = json.dumps({"q": LONG * 200_000, "source": "en", "target": "de", "format": "html"}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    before = set(psutil.Process().children())
    with running(Service(directions, Limits(characters=10**7))) as url:
        with connected(url) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            wait_until(lambda: set(psutil.Process().children()) - before)
        wait_until(lambda: 'status="499"' in get(f"{url}/metrics"))
        assert translated(url, f"{SENTENCES[0]}\n" * 50)  # by another process
        reading = set(psutil.Process().children()) - before
        assert len(reading) == 2
    assert not any(each.is_running() for each in reading)


def test_without_file_descriptors_it_waits_and_warns_once(directions, caplog):
    with running(Service(directions, LIMITS)) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        clients = [socket.socket() for _ in range(20)]
        used = {int(each) for each in os.listdir("/dev/fd")}
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = [number for number in range(limits[0]) if number not in used]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[5], limits[1]))
        try:
            for client in clients:
                client.connect(address)
            wait_until(lambda: caplog.records)
            time.sleep(2.5)  # asyncio tries again after a second
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
            "cannot accept more connections: Too many open files; retrying (ulimit -n sets the limit)"
        ]
        for client in clients:
            client.close()
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}
