"""Programs that speak LibreTranslate's API, themselves or by the requests that they make and what they read."""

import json
import subprocess
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import libretranslatepy
import pytest
from conftest import ROOT
from openapi_spec_validator import validate
from pages import node
from services import FORM, JSON, PARTS, capitalizing, get, multipart, post, running
from waiting import LONGEST

from modeling_scratch.apps.documents import FORMATS
from modeling_scratch.apps.serve.clients import Clients
from modeling_scratch.apps.serve.service import Limits
from modeling_scratch.apps.serve.storage import Suggestions

EN_DE = {"source": "en", "target": "de"}
NPM = ROOT / "node_modules" / "translate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("suggestions") / "new"


@pytest.fixture(scope="module")
def url(folder):
    with running(capitalizing(suggestions=Suggestions(folder))) as url:
        yield url


@pytest.fixture(scope="module")
def url_with_keys():
    with running(capitalizing(clients=Clients(20_000, key="secret"), suggestions=None)) as url:
        yield url


def read(url: str, **headers: str):
    """The JSON of a GET request."""
    with urlopen(Request(url, headers=headers), timeout=LONGEST) as response:
        return json.load(response)


def form(url: str, fields: dict[str, str]):
    return post(url, urlencode(fields).encode(), kind=FORM)


# -- the programs ------------------------------------------------------------------------------------------------------


def test_libretranslatepy(url, url_with_keys):
    client = libretranslatepy.LibreTranslateAPI(url)
    assert client.translate("A cat.", "en", "de") == "A CAT."
    assert client.detect("Der Lehrer gibt dem Kind heute ein Buch.")[0]["language"] == "de"
    assert [language["code"] for language in client.languages()] == ["en", "de"]
    assert libretranslatepy.LibreTranslateAPI(url_with_keys, "secret").translate("A cat.", "en", "de") == "A CAT."


@pytest.mark.skipif(not NPM.is_dir(), reason="needs npm install --no-save translate")
def test_the_npm_package_translate(url, url_with_keys):
    code = """
        import { Translate } from "translate";
        const [url, key] = process.argv.slice(1);
        const translate = Translate({ engine: "libre", from: "en", to: "de", url: `${url}/translate`, key });
        console.log(JSON.stringify(await translate("A cat.").catch((error) => error.message)));
    """
    for address, key, expected in (
        (url, "", "A CAT."),
        (url_with_keys, "secret", "A CAT."),
        (url_with_keys, "wrong", "Invalid API key"),
    ):
        assert node("--input-type=module", "--eval", code, address, key, cwd=ROOT) == expected


# -- their requests ----------------------------------------------------------------------------------------------------


def test_weblate(url):
    assert [language["code"] for language in read(f"{url}/languages")] == ["en", "de"]
    status, answer = post(f"{url}/translate", {"api_key": "", "q": ["A cat.", "A dog."]} | EN_DE)
    assert (status, answer["translatedText"]) == (200, ["A CAT.", "A DOG."])


def test_mastodon(url, url_with_keys):
    languages = {row["code"]: row["targets"] for row in read(f"{url}/languages", **{"Content-Type": JSON})}
    assert languages == {"en": ["de"], "de": ["en"]}
    post_of_a_user = {"q": ["<p>The teacher gives the child a book.</p>", "A cat?"], "format": "html", "api_key": None}
    status, answer = post(f"{url}/translate", post_of_a_user | {"source": "auto", "target": "de"})
    assert status == 200
    assert answer["translatedText"] == ["<p>THE TEACHER GIVES THE CHILD A BOOK.</p>", "A CAT?"]
    assert [detected["language"] for detected in answer["detectedLanguage"]] == ["en", "en"]
    # Anything but 403 and 429 means to it that the service is broken.
    assert post(f"{url_with_keys}/translate", post_of_a_user | EN_DE | {"api_key": "wrong"})[0] == 403


def test_discourse(url):
    status, (best, *_) = form(f"{url}/detect", {"q": "Der Lehrer gibt dem Kind ein Buch.", "api_key": ""})
    assert (status, best["language"]) == (200, "de")
    assert {"de", "en"} <= {language["code"] for language in read(f"{url}/languages")}
    fields = {"q": "<p>Ein Buch.</p>", "source": best["language"], "target": "en", "format": "html", "api_key": ""}
    assert form(f"{url}/translate", fields) == (200, {"translatedText": "<p>EIN BUCH.</p>"})


def test_dialect(url, url_with_keys, folder):
    for address, needed in ((url, False), (url_with_keys, True)):
        assert read(f"{address}/spec")["info"]["title"] == "LibreTranslate"
        assert [language["name"] for language in read(f"{address}/languages")] == ["English", "German"]
        settings = read(f"{address}/frontend/settings")
        assert (settings["apiKeys"], settings["keyRequired"], settings["suggestions"]) == (needed, needed, not needed)
        assert settings["charLimit"] == 20_000
    for key, is_right in (("secret", True), ("wrong", False)):
        answer = form(f"{url_with_keys}/detect", {"q": "hello", "api_key": key})[1]
        assert "confidence" in answer[0] if is_right else answer["error"] == "Invalid API key"
    english = "The teacher gives the child a book."
    answer = post(f"{url}/translate", {"q": english, "source": "auto", "target": "de"})[1]
    assert (answer["translatedText"], answer["detectedLanguage"]["language"]) == (english.upper(), "en")
    assert "is not supported" in post(f"{url}/translate", {"q": "a", "source": "en", "target": "xx"})[1]["error"]
    assert "exceeds text limit" in post(f"{url}/translate", {"q": "a" * 20_001} | EN_DE)[1]["error"]
    fields = {"q": "A cat.", "s": "Eine Katze.\n„Ja“", "source": "EN", "target": "de"}
    assert form(f"{url}/suggest", fields) == (200, {"success": True})
    assert (folder / "en-de.jsonl").read_text("utf-8") == '{"en": "A cat.", "de": "Eine Katze.\\n„Ja“"}\n'


def test_n8n(url_with_keys, url):
    query = "?api_key=secret"
    assert [language["code"] for language in read(f"{url_with_keys}/languages{query}")] == ["en", "de"]
    text = {"q": "A cat.", "format": "text", "alternatives": 0} | EN_DE
    assert post(f"{url_with_keys}/translate{query}", text) == (200, {"translatedText": "A CAT."})
    assert post(f"{url_with_keys}/detect{query}", {"q": "A cat."})[0] == 200
    status, answer = post(f"{url_with_keys}/translate_file{query}", multipart(EN_DE, b"A cat.", "data"), kind=PARTS)
    assert status == 200
    assert get(answer["translatedFileUrl"]) == "A CAT."
    assert post(f"{url}/suggest?api_key=", {"q": "A dog.", "s": "Ein Hund."} | EN_DE) == (200, {"success": True})
    status, answer = post(f"{url_with_keys}/suggest{query}", {"q": "A dog.", "s": "Ein Hund."} | EN_DE)
    assert (status, answer["error"]) == (403, "Suggestions are disabled on this server.")


def test_a_client_in_php(url):
    """jefs42/libretranslate sends forms in several parts, and parameters in the address."""
    assert post(f"{url}/", multipart({}), kind=PARTS)[0] == 405  # only to see whether anything answers
    for path in ("/frontend/settings", "/languages"):
        request = Request(url + path, data=multipart({}), headers={"Content-Type": PARTS}, method="GET")
        assert urlopen(request, timeout=LONGEST).status == 200
    query = urlencode({"q": "Der Lehrer gibt dem Kind ein Buch.", "api_key": ""})
    assert post(f"{url}/detect?{query}", b"", kind=PARTS)[1][0]["language"] == "de"
    fields = {"q": "A cat.", "format": "html", "api_key": ""} | EN_DE
    assert post(f"{url}/translate", multipart(fields), kind=PARTS) == (200, {"translatedText": "A CAT."})
    fields.pop("q")
    answer = post(f"{url}/translate_file", multipart(fields, b"<p>A cat.", "a.html"), kind=PARTS)[1]
    assert get(answer["translatedFileUrl"]) == "<p>A CAT."


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_an_address_that_ends_in_a_slash_works_with_paths_that_begin_with_one(url):
    for path in ("//translate", "/translate/"):
        assert post(url + path, {"q": "A cat."} | EN_DE) == (200, {"translatedText": "A CAT."})
    assert read(f"{url}//languages") == read(f"{url}/languages")


def test_head_and_preflight_requests_are_answered():
    with running(capitalizing(origins=("https://example.org",))) as url:
        with urlopen(Request(f"{url}/", method="HEAD"), timeout=LONGEST) as response:
            assert (response.status, response.read()) == (200, b"")
        asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
        asked["Access-Control-Request-Headers"] = "content-type"
        with urlopen(Request(f"{url}/translate", headers=asked, method="OPTIONS"), timeout=LONGEST) as response:
            assert response.headers["Access-Control-Allow-Origin"] == "https://example.org"
            assert "POST" in response.headers["Access-Control-Allow-Methods"]


# -- the description of the API ----------------------------------------------------------------------------------------


def test_the_description_is_valid_and_names_what_the_service_takes(url, url_with_keys):
    spec = read(f"{url}/spec")
    validate(spec)
    assert "/suggest" in spec["paths"]
    assert "/suggest" not in read(f"{url_with_keys}/spec")["paths"]
    fields = spec["paths"]["/translate"]["post"]["requestBody"]["content"][JSON]["schema"]["properties"]
    assert all(name in fields["format"]["description"] for name, kind in FORMATS.items() if not kind.is_binary)
    for path, (method, *_) in spec["paths"].items():
        status = 200 if method == "get" else 400  # nothing is given
        answer = post(url + path, {}) if method == "post" else (urlopen(url + path, timeout=LONGEST).status, {})
        assert answer[0] == status, path


def test_the_page_of_the_api_needs_nothing_else_and_its_example_works(url):
    page = get(f"{url}/docs")
    assert "<script" not in page
    assert "http" not in page.replace(f"{url}/translate", "")
    assert all(path in page for path in read(f"{url}/spec")["paths"])
    command = page.partition("<pre>")[2].partition("</pre>")[0].replace("&#x27;", "'").replace("&quot;", '"')
    done = subprocess.run(["bash", "-c", f"{command} --silent"], capture_output=True, text=True)
    assert json.loads(done.stdout) == {"translatedText": "HELLO!"}


# -- suggestions -------------------------------------------------------------------------------------------------------


def test_suggestions_are_limited_and_never_half_written(tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_scratch.apps.serve.storage._MOST_BYTES", 100)
    suggestion = {"q": "A cat.", "s": "Eine Katze."} | EN_DE
    with running(capitalizing(Limits(characters=20), suggestions=Suggestions(tmp_path))) as url:
        assert [post(f"{url}/suggest", suggestion)[0] for _ in range(3)] == [200, 200, 503]
        assert post(f"{url}/suggest", suggestion | {"s": "a" * 21})[0] == 400
        assert post(f"{url}/suggest", suggestion | {"target": "../de"})[0] == 400
        assert post(f"{url}/suggest", EN_DE | {"q": "a"})[1]["error"] == "Invalid request: missing s parameter"
    line = '{"en": "A cat.", "de": "Eine Katze."}\n'
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("en-de.jsonl", 2 * line)]
