"""In headless Chromium, an exported page works without a network after one visit, and shows the newest export."""

import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pages import needs_runtime
from transformers import GenerationConfig
from translators import make_folder
from waiting import LONGEST, wait_until

from modeling_scratch.apps.web.export import export_page
from modeling_scratch.loading import load_tokenizers, save_tokenizers

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    needs_runtime,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]


@pytest.fixture
def pages(tmp_path):
    """A folder with a page in a subfolder of `site`, and an export that is to replace it."""
    model = str(make_folder(tmp_path / "model"))
    (tmp_path / "site").mkdir()
    export_page([model], tmp_path / "site" / "sub")
    export_page([model], tmp_path / "next", quantize=True)
    return tmp_path


@pytest.fixture
def serving():
    """Serves a folder at an address that stays the same. Yields functions that start and stop it, and what it sent."""
    sent, servers, port = [], [], [0]

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def end_headers(self):
            self.send_header("Cache-Control", "no-cache")  # without a network, the browser's own cache has nothing
            super().end_headers()

        def copyfile(self, source, output):
            sent.append(self.path)
            super().copyfile(source, output)

    def start(folder) -> str:
        servers.append(ThreadingHTTPServer(("127.0.0.1", port[0]), partial(Handler, directory=folder)))
        port[0] = servers[-1].server_port
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{port[0]}/"

    def stop():
        servers[-1].shutdown()
        servers[-1].server_close()

    yield start, stop, sent
    stop()


def translated(page) -> str:
    page.fill("#source", "The old man sleeps.")
    sync_api.expect(page.locator("#target .word").first).to_be_visible(timeout=1000 * LONGEST)
    return page.locator("#target").text_content()


def test_a_page_in_a_subfolder_works_offline_after_one_visit_and_then_shows_a_new_export(pages, serving):
    start, stop, sent = serving
    url = f"{start(pages / 'site')}sub/"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, wrong = browser.new_page(), []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(url)
        online = translated(page)
        page.evaluate("navigator.serviceWorker.ready.then(() => null)")
        kept = page.evaluate("caches.keys()")
        assert len(kept) == 1
        assert len(sent) == len(set(sent))  # nothing is sent a second time in order to be kept
        stop()
        for address in (url, f"{url}index.html"):
            page.goto(address)
            assert translated(page) == online
        assert wrong == []
        shutil.rmtree(pages / "site" / "sub")
        (pages / "next").rename(pages / "site" / "sub")
        start(pages / "site")
        page.goto(url)
        assert page.locator("html").get_attribute("data-model") == read_name(pages / "site" / "sub")
        translated(page)
        wait_until(lambda: kept != (now := page.evaluate("caches.keys()")) and len(now) == 1)
        stop()
        page.goto(url)
        assert page.locator("html").get_attribute("data-model") == read_name(pages / "site" / "sub")
        assert translated(page)
        start(pages / "site")
        browser.close()


def test_a_direction_that_was_loaded_works_offline_and_after_a_new_export(tmp_path, serving):
    start, stop, _ = serving
    models = [str(make_folder(tmp_path / name)) for name in ("one", "other")]
    save_tokenizers(*load_tokenizers(models[1]), tmp_path / "other", languages=("de", "en"))
    site = tmp_path / "site"
    export_page(models, site)
    url = start(site)
    kept = f"caches.match('{url}{next(site.glob('de-en/encoder-*')).relative_to(site)}').then(Boolean)"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{url}#source=de&target=en")
        online = translated(page)
        wait_until(lambda: page.evaluate(kept))
        stop()
        page.reload()
        assert translated(page) == online
        start(tmp_path / "none")  # answers 404
        page.reload()
        assert translated(page) == online
        stop()
        worker, before = site / "offline.js", page.evaluate("caches.keys()")
        worker.write_text(re.sub(r'version = "\w+"', 'version = "0123456789"', worker.read_text()))
        start(site)
        page.goto("about:blank")
        page.goto(f"{url}#source=en&target=de")
        translated(page)
        wait_until(lambda: before != (now := page.evaluate("caches.keys()")) and len(now) == 1)
        assert page.evaluate(kept)
        browser.close()


def test_a_better_model_works_offline_once_it_was_loaded(tmp_path, serving):
    start, stop, _ = serving
    models = [make_folder(tmp_path / "teacher"), make_folder(tmp_path / "student", d_model=24, updates=100)]
    settings = GenerationConfig.from_pretrained(models[1])
    settings.num_beams = 1
    settings.save_pretrained(models[1])
    site = tmp_path / "site"
    export_page(list(map(str, models)), site)
    url = start(site)
    kept = f"caches.match('{url}{next(site.glob('source-target/encoder-*')).relative_to(site)}').then(Boolean)"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(locale="en-US")
        page.goto(url)
        faster = translated(page)
        page.evaluate("navigator.serviceWorker.ready.then(() => null)")
        assert not page.evaluate(kept)
        stop()
        page.click("#better")
        failure = page.locator("#note.failure")
        sync_api.expect(failure).to_contain_text("The model could not be loaded.", timeout=1000 * LONGEST)
        page.click("#faster")
        assert translated(page) == faster
        start(site)
        page.click("#better")
        better = translated(page)
        wait_until(lambda: page.evaluate(kept))
        stop()
        page.reload()
        assert page.locator("#better").get_attribute("aria-pressed") == "true"
        assert translated(page) == better
        page.click("#faster")
        assert translated(page) == faster
        start(site)
        browser.close()


def read_name(page) -> str:
    return next(page.glob("model-*.json")).name
