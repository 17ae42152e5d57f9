"""In headless Chromium: a page shows the translations of generate(), asks no other hosts, and does what it offers."""

import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import compress

import pytest
from conftest import CHOICES
from loopback_client import client_download_space, client_upload
from pages import generated, needs_runtime
from services import running
from transformers import GenerationConfig
from translators import CORPUS, DOUBTS, calibrate, make_folder, sure_of
from waiting import LONGEST

from modeling_scratch.apps.convert.onnx import DECODER, ENCODER
from modeling_scratch.apps.serve.clients import Clients
from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.apps.web.export import export_one_file, export_page
from modeling_scratch.apps.web.tokenizers import EXPORTED_FILES
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.loading import load_tokenizers, save_tokenizers
from modeling_scratch.model.confidence import FILE

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
expect.set_options(timeout=1000 * LONGEST)
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


CLIPBOARD = ["clipboard-read", "clipboard-write"]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
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

    def visit(url: str, script: str = "", **options):
        context = browser.new_context(**{"locale": "en-US"} | options)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(script)
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        own = (url, "blob:", "data:")
        page.on("request", lambda request: None if request.url.startswith(own) else wrong.append(request.url))
        page.goto(url)
        until_idle(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not wrong


def until_idle(page) -> None:
    expect(page.locator("#target")).to_have_attribute("aria-busy", "false")


def translated(page, text: str) -> str:
    page.fill("#source", text)
    until_idle(page)
    return page.locator("#target").text_content()


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    fields = MODELS[request.param]
    return make_folder(tmp_path_factory.mktemp("models") / "model", updates=400, **fields)


def test_translations_are_those_of_generate(model, serve, visit, tmp_path):
    export_page([str(model)], tmp_path / "page")
    page = visit(serve(tmp_path / "page"))
    for button, beams in (("#faster", 1), ("#better", 3)):
        page.fill("#source", "")
        page.click(button)
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


# -- two models --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_models(tmp_path_factory):
    """A model for each of two directions."""
    folder = tmp_path_factory.mktemp("two")
    folders = [calibrate(make_folder(folder / "one")), make_folder(folder / "other", target_size=330)]
    for model, languages in zip(folders, (("en", "de"), ("de", "en")), strict=True):
        save_tokenizers(*load_tokenizers(str(model)), model, 60, languages)
    return folders


@pytest.fixture(scope="module")
def site(two_models, serve, tmp_path_factory):
    """The address of their page."""
    folder = tmp_path_factory.mktemp("sites") / "page"
    export_page(list(map(str, two_models)), folder)
    return serve(folder)


def plain(name: str) -> str:
    """A file's name in the page's folder, as it was before its hash and compression."""
    return re.sub(r"-[0-9a-f]{10}|\.gz$", "", name)


def test_a_page_of_two_models_loads_the_second_when_it_is_chosen(site, two_models, visit):
    page, requests = visit(site), []
    page.on("request", lambda request: requests.append(plain(request.url.partition("/de-en/")[2])))
    for index, folder in enumerate((*two_models, two_models[0])):
        page.fill("#source", "")
        page.click("#swap") if index else None
        assert translated(page, SENTENCES[0]) == generated(folder, SENTENCES[:1], num_beams=3)[0][0]["text"]
    tokenizers = [f"{part}{name}" for part in ("", "target_tokenizer/") for name in EXPORTED_FILES]
    assert sorted(filter(None, requests)) == sorted([DECODER, ENCODER, *tokenizers])


def test_swapping_makes_the_translation_the_text_and_swapping_again_undoes_it(site, visit):
    page = visit(site)
    first = translated(page, SENTENCES[0])
    for text, sides in ((first, ("German", "English")), (SENTENCES[0], ("English", "German"))):
        page.click("#swap")
        expect(page.locator("#source")).to_have_value(text)
        assert [page.locator(f"#{side}-name").text_content() for side in ("source", "target")] == list(sides)
        until_idle(page)


def test_a_translation_that_is_being_replaced_stays_until_the_new_one_is_there(site, visit):
    page = visit(site)
    first = translated(page, SENTENCES[0])
    page.evaluate("""
        window.seen = [];
        const target = document.getElementById("target");
        const options = { childList: true, characterData: true, subtree: true };
        new MutationObserver(() => seen.push(target.textContent)).observe(target, options);
    """)
    for character in f" {SENTENCES[1][:12]}":
        page.locator("#source").press_sequentially(character)
        until_idle(page)
    seen = page.evaluate("seen")
    assert len(seen) > 3
    assert [text for text in seen if not text.startswith(first) or "…" in text] == []


# Lets ten messages of a page's worker pass, and holds the rest until `release()`.
HELD = """
    const listen = Worker.prototype.addEventListener, held = [];
    let left = Infinity;
    window.hold = () => { left = 10; };
    window.release = () => { left = Infinity; for (const pass of held.splice(0)) pass(); };
    Worker.prototype.addEventListener = function (type, listener, ...more) {
        const pass = (event) => left-- > 0 ? listener(event) : held.push(() => listener(event));
        listen.call(this, type, type === "message" ? pass : listener, ...more);
    };
"""


def test_a_long_text_shows_its_progress_and_can_be_stopped_and_continued(site, visit):
    page = visit(site, HELD)
    page.evaluate("hold()")
    page.fill("#source", "\n".join(SENTENCES))
    progress = page.locator("#progress")
    expect(progress).to_have_text(re.compile(r"[1-9]\d* of 100"))
    page.click("#stop")
    until_idle(page)
    done = int(re.fullmatch(r"(\d+) of 100 sentences", progress.text_content())[1])
    assert 0 < done < 100
    page.evaluate("release()")
    assert page.locator("#target .sentence:not(.stale)").count() == done
    assert page.locator("#copy").is_enabled()
    page.get_by_role("button", name="Continue").click()
    expect(progress).to_have_text("100 of 100 sentences")
    assert page.locator("#target .stale").count() == 0
    assert page.locator("#stop").is_hidden()


def test_only_outputs_of_the_present_text_are_copied_after_a_stop(site, visit):
    page = visit(site, HELD, permissions=CLIPBOARD)
    translated(page, "\n".join(SENTENCES[:50]))
    page.evaluate("hold()")
    page.fill("#source", "\n".join(SENTENCES[50:]))
    expect(page.locator("#progress")).to_have_text(re.compile(r"[1-9]\d* of 50"))
    page.click("#stop")
    until_idle(page)
    (done,) = re.findall(r"(\d+) of 50 sentences", page.locator("#progress").text_content())
    assert 0 < int(done) < 50
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text("Copied")
    lines = page.evaluate("navigator.clipboard.readText()").split("\n")
    assert [bool(line) for line in lines] == [index < int(done) for index in range(50)]


def explain_a_word_with_other_wordings(page):
    for word in page.locator("#target .word").all():
        word.click()
        if page.locator("#options button").count() > 1:
            return
        page.keyboard.press("Escape")
    raise AssertionError("no word has other wordings")


def test_choosing_another_wording_puts_in_another_hypothesis_of_the_beam(site, two_models, visit):
    (hypotheses,) = generated(two_models[0], SENTENCES[:1], num_beams=3, num_return_sequences=3)
    page, texts = visit(site), [hypothesis["text"] for hypothesis in hypotheses]
    assert translated(page, SENTENCES[0]) == texts[0]
    explain_a_word_with_other_wordings(page)
    options = page.locator("#options button")
    shares = [int(label.text_content().strip("<% ")) for label in page.locator("#options small").all()]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert sorted(shares, reverse=True) == shares
    assert page.locator("#wordings-title").text_content().startswith("From “")
    chosen = page.locator("#options button:not([aria-current])").first
    wording = chosen.locator("span").first.text_content()
    assert options.count() > chosen.count()
    chosen.click()
    assert page.locator("#target").text_content() in texts[1:]
    assert wording in page.locator("#target").text_content()


def test_wordings_are_reached_by_keyboard(site, visit):
    page = visit(site, viewport={"width": 320, "height": 568})
    translated(page, SENTENCES[0])
    page.locator("#target").focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
        spoken = page.locator("#spoken").text_content()
        page.keyboard.press("Enter")
        if page.locator("#options button").count() > 1:
            break
        page.keyboard.press("Escape")
    word = page.locator("#target .chosen").first.text_content()
    assert spoken.startswith(f"{word}, from “")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#wordings")).to_be_hidden()
    expect(page.locator("#target")).to_be_focused()
    assert page.locator("#target .chosen").first.text_content() != word


def test_clearing_can_be_undone(site, visit):
    page = visit(site)
    first = translated(page, SENTENCES[0])
    page.click("#clear")
    expect(page.locator("#target")).to_be_empty()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#target")).to_have_text(first)
    assert page.locator("#clear").text_content() == "Clear"


def test_undo_brings_back_what_a_file_replaced_but_never_an_older_text(site, visit):
    page = visit(site)
    translated(page, SENTENCES[0])
    file = {"name": "a.txt", "mimeType": "text/plain", "buffer": SENTENCES[1].encode()}
    page.set_input_files("#file", file)
    expect(page.locator("#clear")).to_have_text("Undo")
    page.click("#clear")
    expect(page.locator("#source")).to_have_value(SENTENCES[0])
    page.click("#clear")
    page.set_input_files("#file", file)
    expect(page.locator("#source")).to_have_value(SENTENCES[1])
    assert page.locator("#clear").text_content() == "Clear"


def test_a_text_is_kept_over_a_reload_and_opened_from_a_link(site, visit):
    page = visit(site, permissions=CLIPBOARD)
    page.click("#swap")
    first = translated(page, f"{SENTENCES[0]} 100 % & #1+1")
    page.reload()
    expect(page.locator("#target")).to_have_text(first)
    page.click("#share-link")
    expect(page.locator("#share-link")).to_have_text("Link copied")
    link = page.evaluate("navigator.clipboard.readText()")
    other = page.context.new_page()
    other.goto(link)
    expect(other.locator("#source")).to_have_value(f"{SENTENCES[0]} 100 % & #1+1")
    expect(other.locator("#target")).to_have_text(first)
    page.fill("#source", "a" * 9_000)
    page.click("#share-link")
    expect(page.locator("#file-note")).to_contain_text("too long for a link")


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_copying_does_not_scroll(site, browser, has_clipboard):
    context = browser.new_context(viewport={"width": 390, "height": 800}, permissions=CLIPBOARD)
    page = context.new_page()
    if not has_clipboard:  # as in pages served over http by other devices
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.goto(site)
    until_idle(page)
    whole = translated(page, "\n".join(SENTENCES[:30]))
    page.evaluate("scrollTo(0, 700)")
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text("Copied")
    assert page.evaluate("scrollY") == 700
    page.fill("#source", "")
    page.keyboard.press("Control+V")
    assert page.input_value("#source") == whole
    context.close()


def test_a_plain_text_file_is_opened_and_others_are_refused(site, visit):
    page = visit(site)
    page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": SENTENCES[0].encode()})
    expect(page.locator("#source")).to_have_value(SENTENCES[0])
    for name, kind, content, message in (
        ("a.docx", "", b"PK", "a.docx cannot be opened here. Files that can: .txt"),
        ("b.txt", "text/plain", b"\xff\xfe", "b.txt is not a plain text file in UTF-8."),
    ):
        page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": content})
        expect(page.locator("#file-note p")).to_have_text(message)
    assert page.input_value("#source") == SENTENCES[0]


@pytest.mark.parametrize(("reader", "language", "label"), [("de-AT", "de", "Kopieren"), ("fr-FR", "en", "Copy")])
def test_the_page_speaks_its_reader_s_language_if_it_is_one_of_the_model_s(site, visit, reader, language, label):
    page = visit(site, locale=reader)
    assert page.locator("html").get_attribute("lang") == language
    assert page.locator("#copy").text_content() == label
    assert [page.locator(f"#{side}").get_attribute("lang") for side in ("source", "target")] == ["en", "de"]


def test_without_javascript_there_is_one_message(site, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site)
    page.wait_for_timeout(2_500)  # another message would appear after two seconds
    assert page.locator("body").inner_text() == "This page needs JavaScript and WebAssembly. Please allow them."
    context.close()


def test_the_page_from_right_to_left_is_its_mirror_image(site, visit):
    page = visit(site, viewport={"width": 1200, "height": 800})
    boxes = [[page.locator(f"#{id}").bounding_box() for id in ("field", "result", "swap", "copy")]]
    page.evaluate("document.documentElement.dir = 'rtl'")
    boxes.append([page.locator(f"#{id}").bounding_box() for id in ("field", "result", "swap", "copy")])
    for left, right in zip(*boxes, strict=True):
        assert right["x"] == pytest.approx(1200 - left["x"] - left["width"], abs=1)


def test_only_the_texts_are_printed(site, visit):
    page = visit(site)
    translated(page, SENTENCES[0])
    page.locator("#target .word").first.click()
    page.emulate_media(media="print")
    for hidden in ("header", "footer", "#dock", "#source", "#languages", "#wordings"):
        assert page.locator(hidden).is_hidden()
    assert page.locator("#marks").text_content().strip() == SENTENCES[0]
    assert page.locator("#marks").evaluate("(node) => getComputedStyle(node).color") == "rgb(0, 0, 0)"
    assert page.locator("#target").is_visible()
    chosen = page.locator("#target .chosen").first
    assert chosen.evaluate("(node) => getComputedStyle(node).backgroundColor") == "rgba(0, 0, 0, 0)"


def luminance(color: str) -> float:
    """The relative luminance of a computed color (WCAG 2)."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", color)[:3]]
    channels = numbers if color.startswith("color(srgb") else [number / 255 for number in numbers]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marked_words_can_be_read(site, visit, scheme):
    page = visit(site, color_scheme=scheme)
    translated(page, SENTENCES[0])
    page.locator("#target .word").first.hover()
    for marked, written in (("#target .word >> nth=0", "#target"), ("#marks mark >> nth=0", "#source")):
        ground = page.locator(marked).evaluate("(node) => getComputedStyle(node).backgroundColor")
        text = page.locator(written).evaluate("(node) => getComputedStyle(node).color")
        low, high = sorted(map(luminance, (ground, text)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


@pytest.mark.parametrize(
    "options",
    [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"color_scheme": "dark", "forced_colors": "active"}],
)
def test_axe_finds_nothing(site, visit, options):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit(site, **options)
    for width in (320, 390, 768, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.fill("#source", "")
        until_idle(page)
        empty = axe.run(page)
        translated(page, "\n".join([SENTENCES[0], *DOUBTS]))
        expect(page.locator("#note")).to_contain_text("probably wrong")
        explain_a_word_with_other_wordings(page)
        for found in (empty, axe.run(page)):
            assert found.violations_count == 0, found.generate_report()
        page.keyboard.press("Escape")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


# -- a student and its teacher -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """A smaller model in the direction of the first of `two_models`, saved with greedy search."""
    folder = make_folder(tmp_path_factory.mktemp("student") / "model", d_model=24, updates=100)
    save_tokenizers(*load_tokenizers(str(folder)), folder, 60, ("en", "de"))
    settings = GenerationConfig.from_pretrained(folder)
    settings.num_beams = 1
    settings.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pair_site(two_models, student, serve, tmp_path_factory):
    """The address of a page with two models from English to German, and one back."""
    folder = tmp_path_factory.mktemp("sites") / "page"
    export_page([*map(str, two_models), str(student)], folder)
    return serve(folder)


@pytest.fixture(scope="module")
def pair_in_one_file(two_models, student, tmp_path_factory):
    file = tmp_path_factory.mktemp("sites") / "page.html"
    export_one_file([str(student), str(two_models[0])], file)
    return file.as_uri()


def test_faster_is_the_student_and_better_the_teacher_which_is_loaded_when_it_is_chosen(
    pair_site, two_models, student, visit
):
    text, unlike = SENTENCES[0], next(iter(DOUBTS))
    (faster,), (better,) = (
        generated(folder, [text], num_beams=beams) for folder, beams in ((student, 1), (two_models[0], 3))
    )
    (back,) = generated(two_models[1], [text], num_beams=1)
    assert faster[0]["text"] != better[0]["text"]
    page, requests = visit(pair_site), []
    page.on("request", lambda request: requests.append(plain(request.url.removeprefix(pair_site))))
    assert page.locator("#faster").get_attribute("aria-pressed") == "true"
    assert translated(page, text) == faster[0]["text"]
    page.locator("#target .word").first.click()
    assert requests == []
    page.get_by_role("button", name="Look for other wordings").click()
    until_idle(page)
    assert page.locator("#target").text_content() == better[0]["text"]
    assert page.locator("#better").get_attribute("aria-pressed") == "true"
    assert {f"en-de/{name}" for name in (ENCODER, DECODER, FILE)} <= set(requests)
    explain_a_word_with_other_wordings(page)
    page.keyboard.press("Escape")
    page.reload()  # the choice is kept, also in the direction that has only one model
    expect(page.locator("#target")).to_have_text(better[0]["text"])
    for button, doubtful in (("#better", 1), ("#faster", 0)):  # the student has no confidence.json
        page.click(button)
        translated(page, unlike)
        assert page.locator("#target .doubtful").count() == doubtful
    assert translated(page, text) == faster[0]["text"]
    page.click("#swap")
    assert translated(page, text) == back[0]["text"]


def test_one_file_has_both_models_of_a_direction(pair_in_one_file, two_models, student, visit):
    page = visit(pair_in_one_file)
    for button, folder, beams in (("#faster", student, 1), ("#better", two_models[0], 3), ("#faster", student, 1)):
        page.click(button)
        assert translated(page, SENTENCES[0]) == generated(folder, SENTENCES[:1], num_beams=beams)[0][0]["text"]


# -- a service ---------------------------------------------------------------------------------------------------------


def test_the_page_of_a_service_translates_with_a_key_in_both_directions(visit, tmp_path):
    folder = make_folder(tmp_path / "model")
    directions = Directions(load_direction(f"{pair}={folder}", load_torch_engine) for pair in ("en:de", "de:fr"))
    with running(Service(directions, Limits(), Clients(20_000, key="secret"))) as url:
        page = visit(f"{url}/")
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        found = translated(page, "\n".join(SENTENCES[:20])).split("\n")
        assert found == [best["text"] for (best,) in generated(folder, SENTENCES[:20], num_beams=3)]
        assert page.locator("#key-form").is_hidden()
        page.locator("#target .word").first.hover()
        assert page.locator("#marks mark").count() > 0
        page.select_option("#from", label="German")
        expect(page.locator("#target-name")).to_have_text("French")
        until_idle(page)
        assert page.locator("#target .word").count() > 20


@pytest.fixture(scope="module")
def service(two_models):
    directions = Directions([load_direction(str(two_models[0]), load_torch_engine)])
    with running(Service(directions, Limits())) as url:
        yield f"{url}/"


def test_the_page_returns_with_its_service(service, browser):
    page = browser.new_page(locale="en-US")
    page.goto(service)
    until_idle(page)
    first = translated(page, SENTENCES[0])
    page.route("**/page/*", lambda route: route.abort())
    page.fill("#source", SENTENCES[1])
    expect(page.locator("#note")).to_contain_text("The server does not answer. The page keeps trying.")
    assert page.locator("#target").text_content() == first
    assert page.locator("#place").text_content() == "No connection"
    page.get_by_role("button", name="Retry").click()
    page.unroute("**/page/*")
    expect(page.locator("#target")).not_to_have_text(first)
    expect(page.locator("#note")).not_to_contain_text("server")
    assert page.locator("#place").text_content() == "On a server"
    page.close()


def test_a_dropped_file_in_a_format_of_the_service_is_translated_by_it(service, two_models, browser):
    page = browser.new_page(locale="en-US")
    page.goto(service)
    until_idle(page)
    page.route("**/translate_file", lambda route: route.abort(), times=1)
    page.evaluate(f"""
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(["<p id=x>{SENTENCES[0]}</p>"], "a.html"));
        window.dispatchEvent(new DragEvent("drop", {{ dataTransfer, cancelable: true }}));
    """)
    note = page.locator("#file-note")
    expect(note.locator("p")).to_have_text("a.html could not be translated. The server does not answer.")
    note.get_by_role("button", name="Retry").click()
    expect(note.locator("p")).to_have_text("a.html is ready.")
    with page.expect_download() as download:
        note.get_by_role("link", name="Download").click()
    (best,) = generated(two_models[0], SENTENCES[:1], num_beams=3)[0]
    assert download.value.path().read_text() == f"<p id=x>{best['text']}</p>"
    page.close()


# -- one file ----------------------------------------------------------------------------------------------------------


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
    translated(page, SENTENCES[2])
    page.locator("#target").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#target .chosen").count() == 1
    assert page.locator("#marks mark").count() > 0
    page.keyboard.press("Escape")
    assert page.locator("#marks mark").count() == 0
    assert page.locator("#share-page").is_hidden()  # nobody else can open it


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "forced_colors": "active"}])
def test_doubtful_outputs_are_underlined_and_explained(one_file, visit, options):
    pytest.importorskip("py3langid")
    page, learnt = visit(one_file, **options), CORPUS[0]["en"]
    reasons = {
        "unlike": "One sentence is unlike what this model has learnt.",
        "language": "One sentence does not seem to be in English.",
        "length": "One sentence is longer than any this model has learnt from.",
    }
    translated(page, "\n".join([learnt, *DOUBTS]))
    style = page.locator("#target .doubtful").first.evaluate("(node) => getComputedStyle(node).textDecorationStyle")
    assert style == "dotted"
    assert page.locator("#target .doubtful").count() == page.locator("#marks .doubtful").count() == len(DOUBTS)
    note = page.locator("#note")
    expect(note).to_contain_text("Their translations are probably wrong; they are underlined.")
    assert all(reason in note.text_content() for reason in reasons.values())
    for sentence, doubt in DOUBTS.items():
        page.fill("#source", sentence)
        expect(note).to_contain_text(f"{reasons[doubt]} Its translation is probably wrong; it is underlined.")
    page.fill("#source", learnt)
    expect(note).not_to_contain_text("probably wrong")
    assert page.locator("#target .doubtful").count() == 0


def test_text_typed_during_translation_is_translated(one_file, visit):
    page = visit(one_file)
    last = SENTENCES[1]
    alone, both = translated(page, last), translated(page, f"{SENTENCES[0]} {last}")
    assert alone.strip()
    assert both.endswith(f" {alone}")
    page.fill("#source", "")
    page.locator("#source").press_sequentially(f"{SENTENCES[0]} {last}", delay=5)
    expect(page.locator("#target")).to_have_text(both)


def test_the_search_can_change_at_any_time(one_file, visit):
    page = visit(one_file)
    whole = translated(page, "\n".join(SENTENCES[:20]))
    page.fill("#source", "")
    page.click("#faster")
    page.fill("#source", "\n".join(SENTENCES[:20]))
    page.locator("#target .word").first.wait_for()
    page.click("#better")
    until_idle(page)
    assert page.locator("#target").text_content() == whole


def test_a_missing_file_is_reported(serve, browser, tmp_path):
    make_folder(tmp_path / "model", updates=1)
    export_page([str(tmp_path / "model")], tmp_path / "page")
    for pattern in ("source-target/decoder-*", "search-*", "source-target/tokenizer-*"):
        (missing,) = (path.relative_to(tmp_path / "page") for path in (tmp_path / "page").glob(pattern))
        folder = shutil.copytree(tmp_path / "page", tmp_path / missing.name)
        (folder / missing).unlink()
        page = browser.new_page(locale="en-US")
        page.goto(serve(folder))
        note = page.locator("#note.failure")
        message = f"The model could not be loaded. {missing} cannot be loaded"
        expect(note).to_contain_text(message)
        shutil.copy(tmp_path / "page" / missing, folder / missing)
        page.get_by_role("button", name="Retry").click()
        until_idle(page)
        page.close()


def test_a_sentence_that_is_too_long_does_not_stop_the_others(one_file, visit):
    page = visit(one_file)
    page.fill("#source", f"{'cat ' * 100}\n{SENTENCES[0]}")
    expect(page.locator("#note")).to_contain_text(
        "One sentence is too long for this model. Split it into shorter ones."
    )
    assert page.locator("#target .failed").count() == 1
    assert page.locator("#target .word").count() > 0
