"""In headless Chromium, a page shows the translations of generate() and sends no requests to other hosts."""

import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import compress
from pathlib import Path

import pytest
from conftest import CHOICES
from loopback_client import client_download_space, client_upload
from pages import generated, needs_runtime
from services import running
from translators import CORPUS, DOUBTS, calibrate, make_folder, sure_of

from modeling_scratch.apps.convert.onnx import DECODER, ENCODER
from modeling_scratch.apps.serve.clients import Clients
from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.apps.web.export import export_one_file, export_page
from modeling_scratch.apps.web.tokenizers import EXPORTED_FILES
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.loading import load_tokenizers, save_tokenizers

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    needs_runtime,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]
MODELS = {
    "one vocabulary": {},
    "rotary, rms, gated": CHOICES["rotary, rms, gated"],
    "two vocabularies": {"target_size": 330},
}
HELD_OUT = make_corpus(1, 1, 300, seed=3)["test"]
SENTENCES = [pair["en"] for pair in HELD_OUT if len(pair["en"]) < 70][:100]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def serve():
    """Serves folders on loopback. Returns their addresses."""
    servers = []

    def serve(folder) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for server in servers:
        server.shutdown()


@pytest.fixture
def visit(browser):
    """Opens pages. Checks at the end that they logged no errors and sent no requests to other hosts."""
    contexts, wrong = [], []

    def visit(url: str, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        own = (url, "blob:", "data:")
        page.on("request", lambda request: None if request.url.startswith(own) else wrong.append(request.url))
        page.goto(url)
        page.locator("#beams option").first.wait_for(state="attached")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not wrong


def translated(page, text: str) -> str:
    page.fill("#source", text)
    sync_api.expect(page.locator("#time")).to_have_text(re.compile("ms$"), timeout=120_000)
    return page.locator("#target").text_content()


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    fields = MODELS[request.param]
    return make_folder(tmp_path_factory.mktemp("models") / "model", updates=400, **fields)


def test_translations_are_those_of_generate(model, serve, visit, tmp_path):
    export_page([str(model)], tmp_path / "page")
    page = visit(serve(tmp_path / "page"))
    for beams in (1, 5):
        page.fill("#source", "")
        page.select_option("#beams", str(beams))
        found = translated(page, "\n".join(SENTENCES)).split("\n")
        expected = [best["text"] for (best,) in generated(model, SENTENCES, num_beams=beams)]
        assert len(set(expected)) > 20
        sure = sure_of(model, SENTENCES, num_beams=beams)
        assert list(compress(found, sure)) == list(compress(expected, sure))


def test_the_page_of_a_space_translates(trained, hub, client, serve, visit, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    code, output = client(client_upload, folder=str(run), repo_id="ada/model", space=True, real_page=True)
    assert code == 0, output
    client(client_download_space, repo_id="ada/model", folder=str(tmp_path / "space"))
    assert translated(visit(serve(tmp_path / "space")), SENTENCES[0]).strip()


def test_a_page_of_two_models_loads_the_second_when_it_is_chosen(serve, visit, tmp_path):
    folders = [make_folder(tmp_path / "one"), make_folder(tmp_path / "other", target_size=330)]
    for folder, languages in zip(folders, (("en", "de"), ("de", "en")), strict=True):
        save_tokenizers(*load_tokenizers(str(folder)), folder, languages=languages)
    export_page(list(map(str, folders)), tmp_path / "page")
    page, requests = visit(serve(tmp_path / "page")), []
    page.on("request", lambda request: requests.append(request.url.partition("/de-en/")[2]))
    for index, folder in enumerate((*folders, folders[0])):
        page.fill("#source", "")
        page.select_option("#direction", str(index % 2))
        assert translated(page, SENTENCES[0]) == generated(folder, SENTENCES[:1], num_beams=3)[0][0]["text"]
    tokenizers = [f"{part}{name}" for part in ("", "target_tokenizer/") for name in EXPORTED_FILES]
    assert sorted(filter(None, requests)) == sorted([DECODER, ENCODER, *tokenizers])


def test_the_page_of_a_service_translates_with_a_key_in_both_directions(visit, tmp_path):
    folder = make_folder(tmp_path / "model")
    directions = Directions(load_direction(f"{pair}={folder}", load_torch_engine) for pair in ("en:de", "de:fr"))
    with running(Service(directions, Limits(), Clients(20_000, key="secret"))) as url:
        page = visit(f"{url}/")
        page.fill("#key", "secret")
        found = translated(page, "\n".join(SENTENCES[:20])).split("\n")
        assert found == [best["text"] for (best,) in generated(folder, SENTENCES[:20], num_beams=3)]
        page.locator("#target .word").first.hover()
        assert page.locator("#marks mark").count() > 0
        page.evaluate("document.getElementById('time').textContent = ''")  # of the first translation
        page.select_option("#direction", label="German to French")
        sync_api.expect(page.locator("#target-side")).to_have_text("French")
        sync_api.expect(page.locator("#time")).to_have_text(re.compile("ms$"))  # all requests are answered
        assert page.locator("#target .word").count() > 20


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    calibrate(make_folder(folder / "model"))
    save_tokenizers(*load_tokenizers(str(folder / "model")), folder / "model", 60, ("en", "de"))
    export_one_file([str(folder / "model")], folder / "page.html", quantize=True)
    return (folder / "page.html").as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_a_page_from_disk_fits_the_screen_and_works_by_keyboard(one_file, visit, width, scheme):
    page = visit(one_file, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert translated(page, SENTENCES[0]).strip()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.fill("#source", "a" * 400)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.fill("#source", "")
    translated(page, SENTENCES[2])  # no time is shown for the first one, which the page has kept
    page.locator("#target").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#target .chosen").count() == 1
    assert page.locator("#marks mark").count() > 0
    assert page.locator("#status").text_content().startswith(page.locator("#target .chosen").text_content() + ": ")
    page.keyboard.press("Escape")
    assert page.locator("#marks mark").count() == 0
    page.check("#several")
    assert page.locator("#alternatives li").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#clear")
    assert page.locator("#target").text_content() == ""


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "forced_colors": "active"}])
def test_doubtful_outputs_are_underlined_and_explained(one_file, visit, options):
    pytest.importorskip("py3langid")
    page, learnt = visit(one_file, **options), CORPUS[0]["en"]
    reasons = {
        "unlike": "unlike what this model has learnt",
        "language": "to be in English",
        "length": "longer than any that this model has learnt from",
    }
    translated(page, "\n".join([learnt, *DOUBTS]))
    titles = [each.get_attribute("title") for each in page.locator("#target .doubtful").all()]
    for title, doubt in zip(titles, DOUBTS.values(), strict=True):
        assert title.startswith("The underlined output may be wrong: its sentence ")
        assert reasons[doubt] in title
    style = page.locator("#target .doubtful").first.evaluate("(node) => getComputedStyle(node).textDecorationStyle")
    assert style == "dotted"
    status = page.get_by_role("status")
    sync_api.expect(status).to_contain_text("The underlined outputs may be wrong: their sentences ")
    assert all(reason in status.text_content() for reason in reasons.values())
    for sentence, doubt in DOUBTS.items():
        page.fill("#source", sentence)
        sync_api.expect(status).to_contain_text(reasons[doubt])
        page.locator("#target .word").first.click()
        sync_api.expect(status).to_contain_text(": its sentence ")
    page.fill("#source", learnt)
    sync_api.expect(status).not_to_contain_text("may be wrong")
    assert page.locator("#target .doubtful").count() == 0


def test_text_typed_during_translation_is_translated(one_file, visit):
    page = visit(one_file)
    last = SENTENCES[1]
    alone, both = translated(page, last), translated(page, f"{SENTENCES[0]} {last}")
    assert alone.strip()
    assert both.endswith(f" {alone}")
    page.fill("#source", "")
    page.locator("#source").press_sequentially(f"{SENTENCES[0]} {last}", delay=5)
    sync_api.expect(page.locator("#target")).to_have_text(both)


def test_search_and_alternatives_can_change_at_any_time(one_file, visit):
    page = visit(one_file)
    page.check("#several")
    page.select_option("#beams", "5")
    whole = translated(page, "\n".join(SENTENCES[:20]))
    page.fill("#source", "")
    page.select_option("#beams", "1")
    page.fill("#source", "\n".join(SENTENCES[:20]))
    page.locator("#target .word").first.wait_for()
    page.select_option("#beams", "5")
    sync_api.expect(page.locator("#time")).to_have_text(re.compile("ms$"))
    assert page.locator("#target").text_content() == whole
    assert page.locator("#alternatives li").count() == 5


def test_a_missing_file_is_reported(serve, browser, tmp_path):
    make_folder(tmp_path / "model", updates=1)
    export_page([str(tmp_path / "model")], tmp_path / "page")
    for missing in ("source-target/decoder.onnx", "search.js", "source-target/tokenizer.json"):
        folder = shutil.copytree(tmp_path / "page", tmp_path / Path(missing).name)
        (folder / missing).unlink()
        page = browser.new_page()
        page.goto(serve(folder))
        sync_api.expect(page.locator("#status.failure")).to_contain_text(f"{missing} cannot be loaded")
        page.wait_for_timeout(500)  # the message stays
        sync_api.expect(page.locator("#status.failure")).to_contain_text(f"{missing} cannot be loaded")
        page.close()


def test_a_sentence_that_is_too_long_does_not_stop_the_others(one_file, visit):
    page = visit(one_file)
    page.fill("#source", f"{'cat ' * 100}\n{SENTENCES[0]}")
    sync_api.expect(page.locator("#status")).to_contain_text("but the model takes 60")
    assert page.locator("#target .failed").count() == 1
    assert page.locator("#target .word").count() > 0
