"""`scratch corpus report` counts what is there, shows the worst pairs, and whatever a corpus holds stays text."""

import json
import re
import shutil
import statistics
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from typer.testing import CliRunner

from modeling_scratch.apps.corpora import corpus_report
from modeling_scratch.apps.corpora.checks import CHECKS, check_pairs
from modeling_scratch.apps.corpora.corpus_report import pairs_of_files, pairs_of_recipe, percent, report_on
from modeling_scratch.apps.corpora.pair_files import PairFiles
from modeling_scratch.apps.corpora.report_page import describe, write_page
from modeling_scratch.apps.corpora.rules import read_rules
from modeling_scratch.commands.corpus import app, corpus_data
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.recipe import find_recipe
from modeling_scratch.recipe.reading import load_recipe

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CLEAN = [(pair["en"], pair["de"]) for pair in make_corpus(400, 1, 1, seed=5)["train"]]
HOSTILE = [
    ("<script>top.title=1</script> \x1b[2J {a} {b} {c}", '"><img src="https://example.org/x" onerror="alert(1)">'),
    ("</p></main><style>*{display:none}</style>", "{{ 7 * 7 }} {% raw %} ${x} &lt;b&gt; &#x27;"),
    ("שלום \u202eabc " * 30, "\u0627" * 3000),
]
# The pairs with each fault; a pair may have further faults.
FAULTY = {
    "empty": [(source, "") for source, _ in CLEAN[:5]],
    "script": [(source, "Собака спит в саду весь день.") for source, _ in CLEAN[10:18]],
    "encoding": [(f"{source} Mr Müller.", f"{target} Herr MÃ¼ller.") for source, target in CLEAN[20:26]],
    "placeholders": [(f"{{name}}: {source}", target) for source, target in CLEAN[30:40]],
    "duplicate": CLEAN[50:70],
}
PAIRS = [*CLEAN, *(pair for pairs in FAULTY.values() for pair in pairs), *HOSTILE]
FILES = ["clean.tmx", "dirty.tmx", "https://example.org/<b>.po"]


def origin(place: int) -> str:
    file = FILES[0] if place < len(CLEAN) else FILES[1] if place < len(PAIRS) - len(HOSTILE) else FILES[2]
    return f"{file}#{place}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A corpus with faults, and a test set that has 12 of its sources, one of them with other capitals."""
    folder = tmp_path_factory.mktemp("report")
    rows = [{"en": source, "de": target, "origin": origin(place)} for place, (source, target) in enumerate(PAIRS)]
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    tests = [*(source for source, _ in CLEAN[100:111]), CLEAN[111][0].upper(), "Nothing like it is there at all."]
    (folder / "test.en").write_text("".join(f"{source}\n" for source in tests))
    (folder / "test.de").write_text("x\n" * len(tests))
    return folder


def files(folder: Path, *names: str) -> PairFiles:
    return PairFiles([str(folder / name) for name in names], corpus_data("en", "de"), "FILES")


@pytest.fixture(scope="module")
def found(folder):
    return report_on(
        pairs_of_files(
            ["pairs.jsonl"], files(folder, "pairs.jsonl"), [source for source, _ in files(folder, "test").pairs()]
        ),
        read_rules(),
    )


def scratch_corpus(*arguments) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.output


LANGUAGES = ("--source-language", "en", "--target-language", "de")

# -- figures -----------------------------------------------------------------------------------------------------------


def test_faults_are_counted(found):
    assert found.pairs == len(PAIRS)
    counts = {fault.check: fault.count for fault in found.faults}
    assert list(counts) == list(CHECKS)
    assert counts["duplicate"] == sum(count - 1 for count in Counter(PAIRS).values()) == 20
    assert counts["empty"] == sum(not (source and target) for source, target in PAIRS) == 5
    assert counts["encoding"] == len(FAULTY["encoding"]) + 1  # the HTML entities of HOSTILE
    assert counts["script"] == len(FAULTY["script"]) + 1
    assert counts["length"] == 1
    # Of the sources that FAULTY repeats with other targets, the first comes with its own.
    first: dict[str, str] = {}
    assert counts["several_targets"] == sum(first.setdefault(source, target) != target for source, target in PAIRS)


def test_overlap_with_a_test_set_is_counted_on_both_sides(found):
    sources = {source for source, _ in CLEAN[100:111]}
    assert (found.tests, found.found) == (13, 11)
    assert found.count("test_overlap") == sum(source in sources for source, _ in PAIRS)
    assert found.count("near_test_overlap") >= 1  # the source with other capitals


def test_sizes_are_those_of_the_texts(found):
    for place, side in enumerate(found.sides):
        texts = [pair[place].replace("\u202e", "").strip() for pair in PAIRS]  # models read no invisible characters
        texts = [unicodedata.normalize("NFC", text) for text in texts]
        assert (side.characters, side.longest) == (sum(map(len, texts)), max(map(len, texts)))
        assert abs(side.quantile(0.5) - statistics.median(map(len, texts))) <= 0.5
        assert side.words == sum(len(text.split()) for text in texts)
    ratios = [len(target) / len(source) for source, target in CLEAN]
    clean = corpus_report._ratios(CLEAN)
    edges = 2 ** np.linspace(-3, 3, len(clean) + 1)
    edges[[0, -1]] = 0, np.inf
    assert clean.tolist() == np.histogram(np.array(ratios) + 1e-9, edges)[0].tolist()


def test_the_worst_pairs_are_shown_the_worst_first(found):
    """
    Before pairs that have been shown under another fault, and of equal ones the first; with their places in the corpus,
    and where they are from.
    """
    thresholds = read_rules().thresholds
    tests = [source for source, _ in CLEAN[100:111]]
    scored: dict[str, list[tuple[bool, float, int]]] = {}
    before: set[int] = set()  # pairs with an earlier fault
    for checked in check_pairs(lambda: PAIRS, ("en", "de"), [*tests, CLEAN[111][0].upper()]):
        for finding in checked.findings(thresholds):
            scored.setdefault(finding.check, []).append((finding.line in before, -finding.score, finding.line))
            before.add(finding.line)
    assert scored
    for fault in found.faults:
        expected = sorted(scored.get(fault.check, []))
        assert fault.count == len(expected), fault.check
        expected = [finding[1:] for finding in expected[: corpus_report.EXAMPLES]]
        assert [(-example.score, example.line) for example in fault.examples] == expected
        for example in fault.examples:
            assert example.origin == origin(example.line - 1)
            if fault.check == "duplicate":
                assert PAIRS.index(PAIRS[example.line - 1]) == example.repeated - 1
            if PAIRS[example.line - 1] not in HOSTILE:
                assert (example.source, example.target) == PAIRS[example.line - 1]


def test_cleaning_drops_as_many_pairs_as_the_report_says(folder, found, tmp_path):
    """Of each file."""
    scratch_corpus("clean", folder / "pairs.jsonl", tmp_path / "clean.jsonl", *LANGUAGES, "--test", folder / "test")
    dropped = [json.loads(line) for line in (tmp_path / "clean-dropped.jsonl").read_text().splitlines()]
    assert found.dropped == len(dropped) > 50
    of_files = Counter(row["origin"].rpartition("#")[0] for row in dropped)
    of_all = Counter(origin(place).rpartition("#")[0] for place in range(len(PAIRS)))
    assert found.origins == {file: (of_all[file], of_files[file]) for file in FILES}


def test_tokens_are_those_of_the_tokenizer(trained, folder):
    tokenizers = load_tokenizers(str(trained))
    corpus = pairs_of_files(["pairs.jsonl"], files(folder, "pairs.jsonl"), [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_report, "_TO_TOKENIZE", 10_000)
        sides = report_on(corpus, read_rules(), tokenizers).sides
    for side, tokenizer, place in zip(sides, tokenizers, (0, 1), strict=True):
        texts = [checked.pairs for checked in check_pairs(corpus.pairs, None, names=())]
        sizes = [len(tokenizer.tokenize(pair[place])) for pairs in texts for pair in pairs]
        assert side.tokens.a_word == pytest.approx(sum(sizes) / side.words)
        assert side.tokens.a_text == statistics.median(sizes)
        assert side.tokens.too_long == pytest.approx(sum(size > 255 for size in sizes) / len(sizes))


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.5, "50 %"), (0.0432, "4.3 %"), (0.00052, "0.052 %"), (1e-7, "< 0.001 %")],
)
def test_shares_have_two_digits(share, text):
    assert percent(share) == text
    assert percent(0.9999) == "> 99 %"


def test_a_recipes_training_pairs_are_reported_with_its_test_sets():
    recipe = load_recipe(find_recipe("embedded"), ["data.embedded_size=300"])
    found = report_on(pairs_of_recipe(recipe), read_rules())
    assert (found.pairs, found.languages, found.tests) == (300, ("en", "de"), 1000)
    assert found.count("test_overlap") == found.dropped == 0


def test_a_stream_and_mixed_pairs_are_reported_whole(folder):
    """Each source of mixed pairs has its own share."""
    own = [f"data.train_files=[{folder / 'pairs.jsonl'}]", f"data.validation_files=[{folder / 'pairs.jsonl'}]"]
    own += ["data.test_files=null", "optimization.max_epochs=null", "optimization.max_steps=1", "evaluation.every=1"]
    own += ["checkpoints.every=1"]
    whole, stream = (
        describe(report_on(pairs_of_recipe(load_recipe(find_recipe("own-text"), [*own, more])), read_rules()))
        for more in ("data.streaming=false", "data.streaming=true")
    )
    assert whole == stream
    mixed = load_recipe(find_recipe("own-text"), [*own, f"data.mix=[{{files: [{folder / 'test'}], weight: 2}}]"])
    found = report_on(pairs_of_recipe(mixed), read_rules())
    assert [count for count, _ in found.origins.values()] == [len(PAIRS), 13]
    assert found.pairs == len(PAIRS) + 13


def test_pairs_without_languages_are_not_checked_for_them():
    recipe = load_recipe(find_recipe("dates"), ["data.embedded_size=300"])
    found = report_on(pairs_of_recipe(recipe), read_rules())
    assert {"copy", "language", "script"}.isdisjoint(fault.check for fault in found.faults)
    assert "No languages are named" in " ".join(describe(found))


# -- terminal and page -------------------------------------------------------------------------------------------------


def test_a_terminal_gets_printable_lines_of_80_columns(found):
    lines = describe(found)
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= 80
    assert any("\\x1b[2J" in line for line in lines)


class Page(HTMLParser):
    """The tags and attributes of a page, and the texts of its examples."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.examples: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes += attributes
        if self._inside:
            raise AssertionError(f"<{tag}> in an example")
        self._inside = ("dir", "auto") in attributes
        self.examples += [""] if self._inside else []

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.examples[-1] += data


@pytest.fixture(scope="module")
def page(found, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, found, "scratch corpus clean 'a <b>.jsonl'")
    return path


def test_what_a_corpus_holds_stays_text_on_the_page(found, page):
    read = Page(page.read_text(encoding="utf-8"))
    expected = [text for fault in found.faults for pair in fault.examples for text in (pair.source, pair.target)]
    assert [text.rstrip(".") for text in read.examples] == [text[:400].rstrip(".") for text in expected]
    assert any("<script>" in text for text in read.examples)
    assert {"script", "img", "link", "iframe", "object"}.isdisjoint(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name == "src"]
    assert all(value.startswith("#") for name, value in read.attributes if name == "href")
    assert "url(" not in page.read_text(encoding="utf-8")


def test_the_same_corpus_has_the_same_page(found, folder, page, tmp_path):
    again = pairs_of_files(
        ["pairs.jsonl"], files(folder, "pairs.jsonl"), [source for source, _ in files(folder, "test").pairs()]
    )
    write_page(tmp_path / "again.html", report_on(again, read_rules()), "scratch corpus clean 'a <b>.jsonl'")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_the_command_names_the_command_to_type_next(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = scratch_corpus("report", folder / "pairs.jsonl", *LANGUAGES, "--test", folder / "test")
    command = output.splitlines()[-1].removeprefix("next: scratch corpus ").split()
    assert "pairs-report.html" in output
    scratch_corpus(*command)
    assert (tmp_path / "clean.jsonl").is_file()


def test_only_a_report_is_replaced(found, page, tmp_path):
    write_page(page, found, "scratch corpus clean 'a <b>.jsonl'")
    (tmp_path / "mine.html").write_text("my page")
    with pytest.raises(Exception, match=r"mine\.html exists, and is no report"):
        write_page(tmp_path / "mine.html", found, "")
    assert (tmp_path / "mine.html").read_text() == "my page"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_phones_and_axe_finds_nothing(page, scheme):
    sync_api = pytest.importorskip("playwright.sync_api")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        # axe itself is a script, which the page's own policy forbids.
        visited = browser.new_page(color_scheme=scheme, bypass_csp=True)
        requests = []
        visited.on("request", lambda request: requests.append(request.url))
        visited.goto(page.as_uri())
        assert visited.title().startswith("Corpus report")
        for width in (320, 390, 1440):
            visited.set_viewport_size({"width": width, "height": 900})
            found = axe.run(visited)
            assert found.violations_count == 0, found.generate_report()
            assert visited.evaluate("document.documentElement.scrollWidth") <= width
        assert requests == [page.as_uri()]
        browser.close()


def test_the_template_has_a_meaning_for_each_check():
    assert list(corpus_report.MEANINGS) == list(CHECKS)
    assert not re.search(
        r"\|\s*safe|autoescape false", (ROOT / "modeling_scratch/apps/corpora/report.html.jinja").read_text()
    )
