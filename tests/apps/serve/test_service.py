"""The service: LibreTranslate's API, the page's requests, refusals, limits, failures and shutdown."""

import json
import logging
import os
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import compress
from unittest.mock import Mock
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from services import FORM, JSON, PARTS, Slow, connected, get, metric, multipart, post, raw_request, running
from translators import CORPUS, DOUBTS, calibrate, load, make_folder, sure_of
from waiting import LONGEST, wait_until

from modeling_scratch.apps.serve import readers, service
from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.errors import UserError
from modeling_scratch.inference.ctranslate2_engine import CTranslate2Engine

libretranslatepy = pytest.importorskip("libretranslatepy")
SENTENCES = [pair["en"] for pair in CORPUS if len(pair["en"]) < 50][:40]
LIMITS = Limits(characters=2_000, waiting=500, seconds=LONGEST)
EN_DE = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models") / "one")


@pytest.fixture(scope="module")
def expected(folder):
    """{sentence: its translation by the pipeline}."""
    return dict(zip(SENTENCES, (output["translation_text"] for output in load(folder)(SENTENCES)), strict=True))


@pytest.fixture(scope="module")
def directions(folder):
    return Directions(load_direction(f"{pair}={folder}", load_torch_engine) for pair in ("en:de", "de:en", "en:fr"))


@pytest.fixture(scope="module")
def url(directions):
    with running(Service(directions, LIMITS)) as url:
        yield url


def translated(url, text, **parameters):
    status, answer = post(f"{url}/translate", {"q": text} | EN_DE | parameters)
    assert status == 200, answer
    return answer["translatedText"]


# -- translating -------------------------------------------------------------------------------------------------------


def test_libretranslate_s_client_works(url, expected):
    client = libretranslatepy.LibreTranslateAPI(url)
    assert client.translate(SENTENCES[0], "en", "de") == expected[SENTENCES[0]]
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "fr", "name": "French", "targets": []},
    ]
    assert client.detect("Der Lehrer gibt dem Kind heute ein Buch.")[0]["language"] == "de"


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("text", "{0} {1}\n\n  {2}\r\n"),
        ("html", '<p class="a">{0} <img src="x.png"><br>{1}</p><script>The cat sleeps.</script>'),
    ],
)
def test_a_text_keeps_its_structure(format, text, url, expected):
    translations = [expected[sentence] for sentence in SENTENCES[:3]]
    assert translated(url, text.format(*SENTENCES), format=format) == text.format(*translations)


def test_a_list_of_texts_gets_alternatives_for_each(url, expected):
    status, answer = post(f"{url}/translate", {"q": [*SENTENCES[:2], ""], "alternatives": 2} | EN_DE)
    assert status == 200
    assert answer["translatedText"] == [*(expected[sentence] for sentence in SENTENCES[:2]), ""]
    assert [len(set(row)) for row in answer["alternatives"]] == [2, 2, 0]


def test_placeholders_and_what_keep_names_stay(url, expected):
    first, second = (sentence.split() for sentence in SENTENCES[:2])
    text = f"{first[0]} {{a.b?}} {' '.join(first[1:])} {' '.join(second)} %s"
    for format in ("text", "markdown", "html"):
        found = translated(url, text, format=format)
        assert (found.count("{a.b?}"), found.count("%s")) == (1, 1)
        rest = found.replace("{a.b?}", " ").replace("%s", " ").split()
        assert rest == f"{expected[SENTENCES[0]]} {expected[SENTENCES[1]]}".split()
    answer = post(f"{url}/translate", {"q": text, "alternatives": 2} | EN_DE)[1]
    assert {text.count("{a.b?}") for text in answer["alternatives"]} == {1}
    assert translated(url, "{0}: %s") == "{0}: %s"
    assert translated(url, SENTENCES[0], keep=[SENTENCES[0][:-1], "x"]) == SENTENCES[0]
    form = urlencode({"q": SENTENCES[0], "keep": SENTENCES[0][:-1]} | EN_DE).encode()
    assert post(f"{url}/translate", form, kind=FORM)[1]["translatedText"] == SENTENCES[0]


def test_a_text_in_the_target_language_is_returned_unchanged(url):
    parameters = {"q": ["A  bird.", "b"], "source": "en", "target": "en"}
    assert post(f"{url}/translate", parameters) == (200, {"translatedText": ["A  bird.", "b"]})
    unchanged = {"translatedText": "A bird.", "alternatives": []}
    for source in ("en", "EN"):
        parameters |= {"q": "A bird.", "alternatives": 2, "source": source}
        assert post(f"{url}/translate", parameters) == (200, unchanged)
    assert post(f"{url}/translate", {"q": "a", "source": "xx", "target": "xx"})[0] == 400


def test_with_auto_the_language_of_each_text_is_detected(url):
    german, english = "Der Lehrer gibt dem Kind heute ein Buch.", SENTENCES[0]
    texts = [german, english, german]
    for target, languages in (("en", ["de", "en", "de"]), ("fr", ["en", "en", "en"]), ("de", ["de", "en", "de"])):
        _, answer = post(f"{url}/translate", {"q": texts, "source": "auto", "target": target})
        assert [detected["language"] for detected in answer["detectedLanguage"]] == languages
        for text, language, found in zip(texts, languages, answer["translatedText"], strict=True):
            assert translated(url, text, source=language, target=target) == found
            assert (found == text) == (language == target)


def test_the_language_is_detected_among_all_with_its_probability_in_percent(url):
    expected = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for text in ("The teacher gives the child a book.", "我们明天去北京。" * 20, "Hola"):
        found = [(detected["language"], detected["confidence"]) for detected in post(f"{url}/detect", {"q": text})[1]]
        assert found == [(language, round(100 * float(sure), 1)) for language, sure in expected.rank(text)[:3]]


def test_nothing_is_detected_in_a_text_without_letters(url):
    assert post(f"{url}/detect", {"q": "12"})[1][0]["confidence"] == 0
    assert post(f"{url}/detect", {"q": " "}) == (400, {"error": "Invalid request: missing q parameter"})


def test_with_auto_a_text_in_no_served_language_is_refused_and_an_unclear_one_translated(directions):
    german, chinese = "Der Lehrer gibt dem Kind ein Buch.", "我们明天去北京。" * 20
    with running(Service(Directions([directions.find("en", "de")]), LIMITS)) as url:
        auto = {"source": "auto", "target": "de"}
        status, answer = post(f"{url}/translate", {"q": chinese} | auto)
        assert (status, answer["error"]) == (
            400,
            "zh is not supported; the text is in Chinese; served: en to de",
        )
        assert post(f"{url}/translate", {"q": [chinese, chinese]} | auto)[0] == 400
        assert post(f"{url}/translate", {"q": [chinese, SENTENCES[0]]} | auto)[0] == 200
        assert post(f"{url}/translate", {"q": german} | auto)[1]["translatedText"] == german
        for unclear in ("Pizza", "12345", "OK", "Hola"):
            answer = post(f"{url}/translate", {"q": unclear} | auto)[1]
            assert answer["detectedLanguage"]["language"] == "en"
            assert answer["detectedLanguage"]["confidence"] < 50
        # Tags do not count.
        tags = '<p class="the"><a href="https://the.example.org/">' * 9
        answer = post(f"{url}/translate", {"q": f"{tags}{german}", "format": "html"} | auto)[1]
        assert answer["detectedLanguage"]["language"] == "de"


def test_concurrent_requests_share_batches(url, expected):
    batches, sentences = (metric(url, f"scratch_batch_sentences_{what}") for what in ("count", "sum"))
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda sentence: translated(url, sentence), SENTENCES * 2))
    assert found == [expected[sentence] for sentence in SENTENCES * 2]
    made = metric(url, "scratch_batch_sentences_sum") - sentences
    assert made == len(found)
    assert made / (metric(url, "scratch_batch_sentences_count") - batches) > 3


# -- confidence --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    return calibrate(make_folder(tmp_path_factory.mktemp("models") / "calibrated"))


@pytest.fixture(scope="module")
def calibrated_url(calibrated):
    direction = load_direction(f"en:de={calibrated}", load_torch_engine)
    with running(Service(Directions([direction]), LIMITS)) as url:
        yield url


def test_the_confidence_in_a_text_is_the_pipeline_s_in_its_least_sure_sentence(calibrated, calibrated_url):
    sentences = [SENTENCES[0], SENTENCES[1], "A teacher."]
    of_each = [output["confidence"] for output in load(calibrated)(sentences, return_confidence=True)]
    texts = ["\n".join(sentences[:2]), sentences[2], "***"]
    _, answer = post(f"{calibrated_url}/translate", {"q": texts} | EN_DE)
    nothing_to_translate = 1.0
    expected = [min(of_each[:2]), of_each[2], nothing_to_translate]
    assert answer["confidence"] == pytest.approx(expected, abs=1e-4)
    _, one = post(f"{calibrated_url}/translate", {"q": texts[0]} | EN_DE)
    assert one["confidence"] == answer["confidence"][0]
    _, unchanged = post(f"{calibrated_url}/translate", {"q": texts[0], "source": "de", "target": "de"})
    assert unchanged == {"translatedText": texts[0]}


def test_doubtful_texts_and_sentences_have_a_reason(calibrated_url):
    sentences = [SENTENCES[0], *DOUBTS]
    two = " ".join(sentences[:2])
    _, answer = post(f"{calibrated_url}/translate", {"q": [*sentences, two]} | EN_DE)
    assert answer["doubt"] == [None, *DOUBTS.values(), "unlike"]
    assert [confidence < 0.5 for confidence in answer["confidence"]] == [False, True, True, True, True]
    _, answer = post(f"{calibrated_url}/translate", {"q": SENTENCES[0]} | EN_DE)
    assert "doubt" not in answer
    _, answer = post(f"{calibrated_url}/page/translate", {"sentences": [*sentences, "ab" * 300], "numBeams": 3} | EN_DE)
    *found, too_long = (row[0] for row in answer["translations"])
    assert [best.get("doubt") for best in found] == [None, *DOUBTS.values()]
    assert all(("doubt" in best) == (best["confidence"] < 0.5) for best in found)
    assert too_long.keys() == {"text", "words", "problem"}


# -- requests ----------------------------------------------------------------------------------------------------------


TEXT = "Où est la forêt ? 森林"


@pytest.mark.parametrize(
    ("kind", "query", "body"),
    [
        (FORM, "", urlencode({"q": TEXT, "source": "EN", "target": "de", "alternatives": "0"}).encode()),
        (FORM, "", f"q={TEXT}&source=en&target=de".encode()),  # unescaped, as curl -d sends it
        (FORM, "", f"q={TEXT}&q=b&source=en&target=de".encode()),  # as in LibreTranslate, the first counts
        (FORM, urlencode({"q": TEXT} | EN_DE), b""),
        (PARTS, "", multipart({"q": TEXT} | EN_DE)),
        # This codec may take minutes: parts are in UTF-8 regardless.
        (f"{PARTS}; charset=punycode", "", multipart({"q": TEXT} | EN_DE)),
    ],
)
def test_forms_are_equivalent_to_json(kind, query, body, url):
    assert post(f"{url}/translate?{query}", body, kind=kind) == post(f"{url}/translate", {"q": TEXT} | EN_DE)


@pytest.mark.parametrize(
    ("status", "word", "path", "body", "kind"),
    [
        (400, "JSON", "/translate", b"{", JSON),
        (400, "JSON", "/translate", b"[" * 30_000, JSON),
        (400, "JSON", "/translate", b"\xff", JSON),
        (400, "object", "/translate", b"[1]", JSON),
        (400, "Invalid request: missing q parameter", "/translate", EN_DE, JSON),
        (400, "Invalid request: missing target parameter", "/translate", {"q": "a", "source": "en"}, JSON),
        (400, "q parameter must be a string", "/translate", {"q": ["a", None]} | EN_DE, JSON),
        (400, "Unicode", "/translate", {"q": "\ud800"} | EN_DE, JSON),
        (400, "xx is not supported; served: en to de", "/translate", {"q": "a", "source": "en", "target": "xx"}, JSON),
        (400, "xx is not supported", "/translate", {"q": "a", "source": "auto", "target": "xx"}, JSON),
        (400, "fr is not available as a target", "/translate", {"q": "a", "source": "de", "target": "fr"}, JSON),
        (400, "alternatives", "/translate", {"q": "a", "alternatives": -1} | EN_DE, JSON),
        (400, "pdf format is not supported", "/translate", {"q": "a", "format": "pdf"} | EN_DE, JSON),
        (400, "keep parameter must be a string", "/translate", {"q": "a", "keep": [1]} | EN_DE, JSON),
        (400, "keep takes up to 100", "/translate", {"q": "a", "keep": ["a"] * 101} | EN_DE, JSON),
        (400, "1 to 200 characters", "/translate", {"q": "a", "keep": [""]} | EN_DE, JSON),
        (400, "1 to 200 characters", "/translate", {"q": "a", "keep": "a" * 201} | EN_DE, JSON),
        (400, "request (2002) exceeds text limit (2000)", "/translate", {"q": "a " * 1001} | EN_DE, JSON),
        (400, "request (2001) exceeds text limit (2000)", "/translate", {"q": ["", "a" * 2001]} | EN_DE, JSON),
        (400, "request (20020) exceeds text limit (20000)", "/translate", {"q": ["a " * 910] * 11} | EN_DE, JSON),
        (400, "request (501) exceeds text limit (500)", "/translate", {"q": [""] * 501} | EN_DE, JSON),
        (400, "at most 60", "/translate", {"q": "ab" * 300} | EN_DE, JSON),
        (400, "no subtitles", "/translate", {"q": "a\n", "format": "srt"} | EN_DE, JSON),
        (400, "list", "/page/translate", {"sentences": "a"} | EN_DE, JSON),
        (404, "Not Found", "/nothing", {}, JSON),
        (405, "Not Allowed", "/languages", {}, JSON),
        (400, "form", "/translate", b"q=a\xff&source=en&target=de", FORM),
        (400, "form", "/translate", b"q=%ff&source=en&target=de", FORM),
        (400, "form", "/translate?q=%ed%a0%80", b"source=en&target=de", FORM),
        (400, "form", "/translate", b"&".join([b"a=b"] * 30), FORM),
        (400, "form", "/translate", multipart({"q": "a!"} | EN_DE).replace(b"!", b"\xff"), PARTS),
        (413, "too large", "/translate", b"a" * 10_000_000, FORM),  # after reading it, or the client would not listen
        (415, "text/plain", "/translate", b"a", "text/plain"),
    ],
)
def test_wrong_requests_are_refused(status, word, path, body, kind, url):
    found, answer = post(f"{url}{path}", body, kind=kind)
    assert (found, word in answer["error"]) == (status, True), answer


def test_only_pages_of_allowed_origins_may_call(directions):
    with running(Service(directions, LIMITS, origins=("https://example.org",))) as url:
        for origin, allowed in (("https://example.org", "https://example.org"), ("https://example.com", None)):
            with urlopen(Request(f"{url}/languages", headers={"Origin": origin})) as response:
                assert response.headers["Access-Control-Allow-Origin"] == allowed


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_is_served_with_a_description_of_the_models(url):
    for path, kind in (("", "html"), ("page.css", "css"), ("page.js", "javascript")):
        with urlopen(f"{url}/{path}", timeout=LONGEST) as answer:
            assert answer.headers.get_content_type() == f"text/{kind}"
            assert answer.read()
    described = json.loads(get(f"{url}/model.json"))
    assert described["service"] == {"isKeyNeeded": False, "mostCharacters": 2_000, "mostFileBytes": 10_000_000}
    assert [model["languages"] for model in described["directions"]] == [["en", "de"], ["de", "en"], ["en", "fr"]]


def test_a_text_is_split_for_the_page_without_losing_characters(url):
    text = "Dr. Smith sleeps. ***\n\n A bird."
    parts = post(f"{url}/page/sentences", {"text": text, "source": "en", "target": "de"})[1]["parts"]
    assert "".join(part for part, _ in parts) == text
    assert [part for part, is_sentence in parts if is_sentence] == ["Dr. Smith sleeps.", "A bird."]


def test_the_page_gets_a_beam_for_each_sentence_and_a_problem_for_one_too_long(url, expected):
    parameters = {"sentences": ["ab" * 300, SENTENCES[0]], "numBeams": 3} | EN_DE
    status, answer = post(f"{url}/page/translate", parameters)
    (problem,), (best, *others) = answer["translations"]
    assert (status, best["text"], len(others)) == (200, expected[SENTENCES[0]], 2)
    assert "at most 60" in problem["problem"]
    assert all(translation["score"] < 0 for translation in (best, *others))


def test_the_page_gets_the_source_words_of_each_word_at_javascript_s_positions(url):
    """JavaScript counts a character beyond the basic plane as two."""
    sentence = f"\U0001f600 {SENTENCES[0]}"
    best = post(f"{url}/page/translate", {"sentences": [sentence]} | EN_DE)[1]["translations"][0][0]
    assert "".join(word["text"] for word in best["words"]) == best["text"]
    words, units = [word for word in best["words"] if word["isWord"]], sentence.encode("utf-16-le")
    assert [word["text"] for word in words] == best["text"].split()
    for word in words:
        read = {units[2 * source["start"] : 2 * source["end"]].decode("utf-16-le") for source in word["from"]}
        assert read <= set(sentence.split())
        assert sum(source["weight"] for source in word["from"]) == pytest.approx(1, abs=0.2)


def test_a_kept_word_on_the_page_comes_from_itself(url, expected):
    plain, sentences = SENTENCES[0], [SENTENCES[0].replace(" ", " {{ a b }} ", 1), "{0} %s"]
    answer = post(f"{url}/page/translate", {"sentences": sentences, "numBeams": 3} | EN_DE)[1]["translations"]
    assert {translation["text"].count("{{ a b }}") for translation in answer[0]} == {1}
    best = answer[0][0]
    assert best["text"].replace("{{ a b }}", " ").split() == expected[plain].split()
    assert "".join(word["text"] for word in best["words"]) == best["text"]
    for word in best["words"]:
        read = {sentences[0][source["start"] : source["end"]]: source["weight"] for source in word["from"]}
        if word["text"] in ("{{", "a", "b", "}}"):
            assert read == {word["text"]: 1}
        elif word["isWord"]:
            assert set(read) <= set(plain.split())
            assert sum(read.values()) == pytest.approx(1, abs=0.2)
    assert [(best["text"], [word for word in best["words"] if word["isWord"]]) for best in answer[1]] == [
        ("{0} %s", [])
    ]


# -- engines and directions --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_engines_give_the_same_translations_scores_and_confidences(calibrated):
    settings, found = {"num_return_sequences": 3, "num_beams": 3, "scores": True}, []
    for engine in (load_torch_engine(str(calibrated)), CTranslate2Engine(str(calibrated))):
        found.append(engine.translate_batch(SENTENCES, engine.tokenize(SENTENCES), **settings))
    for ours, theirs in compress(zip(*found, strict=True), sure_of(calibrated, SENTENCES, num_return_sequences=3)):
        for one, other in zip(ours, theirs, strict=True):
            assert (one.text, one.is_cut) == (other.text, other.is_cut)
            assert (one.score, one.confidence) == pytest.approx((other.score, other.confidence), abs=1e-3)


def test_a_direction_needs_languages_and_a_single_model(folder, directions):
    with pytest.raises(UserError, match="as in en:de="):
        load_direction(str(folder), load_torch_engine)
    with pytest.raises(UserError, match="two models"):
        Directions([directions.find("en", "de")] * 2)


# -- limits and failures -----------------------------------------------------------------------------------------------


@pytest.fixture
def slow_engine():
    engine = Slow()
    yield engine
    engine.go.set()


@pytest.fixture
def slow_directions(directions, slow_engine):
    return Directions([replace(directions.find("en", "de"), engine=slow_engine)])


def test_requests_that_take_too_long_are_given_up(slow_directions, slow_engine):
    with running(Service(slow_directions, Limits(seconds=0.5))) as url:
        with connected(url) as client:
            client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert client.recv(1000).startswith(b"HTTP/1.1 408")
        with connected(url) as client:
            client.sendall(raw_request({"q": "a"} | EN_DE))
            answer = client.recv(1000).lower()
            assert answer.startswith(b"http/1.1 429")
            assert b"retry-after: 1" in answer
        slow_engine.go.set()


def test_requests_whose_clients_disconnect_are_given_up(slow_directions, slow_engine):
    with running(Service(slow_directions, LIMITS)) as url, ThreadPoolExecutor(1) as clients:
        first = clients.submit(translated, url, "a")
        wait_until(lambda: slow_engine.batches)
        with connected(url) as client:
            client.sendall(raw_request({"q": "b"} | EN_DE))
            wait_until(lambda: metric(url, "scratch_waiting_sentences") == 1)
        wait_until(lambda: 'status="499"' in get(f"{url}/metrics"))
        slow_engine.go.set()
        assert first.result() == "A"
    assert slow_engine.batches == [["a"]]


def test_after_an_internal_error_the_service_continues(slow_directions, slow_engine):
    slow_engine.go.set()
    with running(Service(slow_directions, LIMITS)) as url:
        assert post(f"{url}/translate", {"q": "bad"} | EN_DE)[0] == 500
        assert 'path="/translate",status="500"} 1.0' in get(f"{url}/metrics")
        assert translated(url, "good") == "GOOD"
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}


def test_long_documents_are_read_outside_the_service_s_process(directions, monkeypatch):
    monkeypatch.setattr(readers, "read_document", None)
    page = "<p><b>?</b></p>" * 5_000  # nothing to translate
    with running(Service(directions, Limits(characters=100_000))) as url:
        assert translated(url, page, format="html") == page
        assert post(f"{url}/translate", {"q": "<p>?</p>", "format": "html"} | EN_DE)[0] == 500  # it is read here


def test_without_file_descriptors_the_service_warns_once_and_recovers(directions, caplog, monkeypatch):
    monkeypatch.setattr(service, "_SECONDS_BETWEEN_WARNINGS", 1e6)
    served = Service(directions, LIMITS)
    monkeypatch.setattr(served, "_log_loop_error", Mock(side_effect=served._log_loop_error))
    with running(served) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        clients = [socket.socket() for _ in range(20)]
        used = {int(descriptor) for descriptor in os.listdir("/dev/fd")}
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = [number for number in range(limits[0]) if number not in used]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[5], limits[1]))
        try:
            for client in clients:
                client.connect(address)
            wait_until(lambda: served._log_loop_error.call_count >= 2)  # asyncio tries again after a second
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert "ulimit -n" in warning
        for client in clients:
            client.close()
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}
