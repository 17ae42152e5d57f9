"""What translators keep: which parts of a text, and where these go in its translation."""

import json
import random
import re
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from pages import node
from stand_ins import backwards
from translators import SENTENCES, by_hand, lines, make_folder, one_vocabulary, run_translate

sys.path.insert(0, str(ROOT / "benchmarks"))
from readers import CATALOGS, catalog, document_of, text_of

from modeling_scratch.apps.documents import FORMATS
from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.apps.translate.paragraphs import Translated, cut, translate_paragraphs
from modeling_scratch.apps.translate.placement import PlainTexts, as_translated
from modeling_scratch.apps.web import export
from modeling_scratch.commands.translate import own_pattern
from modeling_scratch.errors import UserError
from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_config
from modeling_scratch.model.configuration_scratch import TEXT2TEXT, pipelines_for
from modeling_scratch.model.kept_words import KEPT, RESERVED, KeptWords, in_javascript
from modeling_scratch.model.sentences import beginnings
from modeling_scratch.model.text import Reading, TextRules
from modeling_scratch.model.translations import Translation

# Each stands for a kind.
KINDS = ["{name}", "{0:.2f}", "{user.größe}", "{{ a b }}", "{{{c}}}", "{{< ref >}}", "{% if d %}", "${e f}", "#{g}"]
KINDS += ["%{h}"]
KINDS += ["{ a }", "{a:,.2f}", "{ b:>10 }", "${{ c.D }}", "@{e}", "a@{f}.com"]
KINDS += ["%s", "%-10s", "%.2f", "%.*s", "%*d", "%2$*1$d", "%<PRIuMAX>", "%ld", "%@", "%1$s", "%(n)d", "%%", "$t(i.j)"]
KINDS += ["[X4X]", '<x id="1"/>', "<br/>"]
# java.util.Formatter of Java 21
KINDS += ["%,d", "%1$,d", "%(,.2f", "%1$(,.2f", "%1$(d", "%,-10d", "%b", "%tB", "%1$tY", "%1$TB", "%-12tA", "%<te"]
KINDS += ["%<s"]
KINDS += ["%1", "%L2", "%#@files@", "%name%", "$NAME$", ":attribute", "@:message.a", "@.lower:a.b", "@:(a b)"]
KINDS += ["@:a", "@.upperCase:btn-save", "@:{'a b'}", "@.lower:{name}"]
KINDS += ["{n, number}", "{d, date, short}", "{n, plural, one {# file} other {# files}}"]
KINDS += ["{n, plural, =0 {a {b}} other {{g, select, x {{b} c} other {d}}}}"]
KINDS += ["https://example.org/a?b=c_(d)", "www.example.org", "a.b@example.org", "[^1]"]
KINDS += ["https://example.org/{id}?q={b}", "www.example.org/{{ a b }}/{{{c}}}"]
KINDS += ["@anna", "@user@example.org", "@types/node", "#tag", "#tag/nested", "#tag-two", "#größe", ":smile:"]
KINDS += [":+1::heart_eyes:", "v1.2.3", "v2.0-rc1"]
KINDS += ["`a b`", "``c d``"]
ORDINARY = ["50% of 50%ige 100 %ig", "# 1, #1", "$5.99 US$5", "10:30:45 at 3:2", '{a set of} {a, b} { c d } {"d": 1}']
ORDINARY += [":-) :D ;) 8:", "C# F#m AT&T", "a < b > c", "it`s not what it isn`t", "``quoted'' and ``cited''"]
ORDINARY += ["[sic] [1] [Y4Y]"]
ORDINARY += ["V8 v2 1.2.2020 3.5", "me @ home for 5 @ 3", "std::vector::size", "Note: this: that", "5 %, 7 % de"]
ORDINARY += ["x_y and/or"]
ORDINARY += ["100% clay", "5%, and 7%,d", "50% of", "the %(s) of", "20%(a), 5%tB", "a %total, %Theb, 20 %(so)", "% d"]
ORDINARY += ["e.g. a.m.", "(see below)", "100%, 20%i", "a@b", "[ ]x"]


def kept(text: str, words: KeptWords = KEPT) -> list[str]:
    return [text[start:end] for start, end in words.spans(text)]


def restored(text: str, translate=backwards, words: KeptWords = KEPT) -> Translated:
    return read_and_restored([text], translate, words)[0]


def read_and_restored(texts: list[str], translate=backwards, words: KeptWords = KEPT) -> list[Translated]:
    """The translations of texts by a model that reads no reserved characters."""
    read = PlainTexts(texts, TextRules(), words, "line")
    rows = [[as_translation(*pair)] for pair in zip(read.inputs, translate(read.inputs), strict=True)]
    return [as_translated(text, row[0]) for text, row in zip(texts, read.restored(rows), strict=True)]


def as_translation(source: str, translated: Translated) -> Translation:
    """With a weight of 1 for each link."""
    if not translated.links:
        return Translation(translated.text)
    weights = torch.zeros(len(translated.text.split()), len(source.split()), dtype=torch.float64)
    for word, target in translated.links:
        weights[target, word] = 1
    return Translation(translated.text, weights=weights)


def in_document(format: str, text: str):
    def translate(sentences: list[str]) -> list[Translated]:
        return read_and_restored(sentences)

    document = document_of(format, text)
    return translate_document(document, format, lambda given: translate_paragraphs(given, translate, "en", "de"))


def by_copying(paragraphs: list[str]) -> list[Translated]:
    """Translations by a model that has learned to copy reserved characters, and turns sentences around."""

    def translate(sentences: list[str]) -> list[Translated]:
        read = Reading(sentences, TextRules(reserved=len(RESERVED)), KEPT, "line")
        rows = read.restored([[Translation(" ".join(reversed(text.split())))] for text in read.inputs])
        return [as_translated(text, row[0]) for text, row in zip(sentences, rows, strict=True)]

    return translate_paragraphs(paragraphs, translate, "en", "de")


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_kept_whole_beside_words_and_punctuation(kind):
    for text in ("{}", "a {} b", "({})", "{}, a", "„{}“"):
        assert kept(text.replace("{}", kind)) == [kind]


JOINED = ["%s", "%d", "%.2f", "%1$s", "%@", "%tB", "%<te", "%1", "%L2", "%name%", "{0}", "%(n)d", "v1.2.3"]


@pytest.mark.parametrize("kind", JOINED)
@pytest.mark.parametrize("text", ["ファイル{}を開く", "共{}个文件", "파일{}이 없음", "ไฟล์{}มี", "ឯកសារ{}នេះ"])
def test_words_of_scripts_without_spaces_may_stand_beside_placeholders(kind, text):
    assert kept(text.replace("{}", kind)) == [kind]


def test_ordinary_text_is_not_kept():
    assert {text: kept(text) for text in ORDINARY if kept(text)} == {}


def test_the_page_s_patterns_are_the_same():
    texts = [
        *KINDS,
        *ORDINARY,
        *(f"共{kind}个 {kind}を" for kind in JOINED),
        *(f"a{kind}b {kind}.\u00e9" for kind in KINDS),
        "\u2168\u00b2 #\u2168x @\u00e9t\u00e9_1.",
    ]
    script = f"""const kept = new RegExp({json.dumps(in_javascript())}, "gu");
        console.log(JSON.stringify({json.dumps(texts)}.map((text) => text.match(kept) ?? [])))"""
    assert node("-e", script) == [kept(text) for text in texts]


def test_a_conversion_directly_after_a_number_is_kept():
    assert kept("100%s 50%d, 5%@. 50%so") == ["%s", "%d", "%@"]


def test_own_patterns_and_literals_are_kept_too():
    words = replace(KEPT, patterns=(own_pattern(r"(\w)\1+"), own_pattern("x*")), literals=("cat", "C++", "\u732b"))
    assert kept("aab xx a {0} {0}x", words) == ["aa", "xx", "{0}", "{0}", "x"]
    assert kept("cat category bobcat cat's C++20 C++ \u9ed1\u732b\u7761", words) == [
        "cat",
        "cat",
        "C++",
        "C++",
        "\u732b",
    ]
    assert kept("a {b c", replace(KEPT, literals=("a {", "{b"))) == ["a {b"]  # overlapping
    with pytest.raises(UserError, match=r"^--keep \(: not a regular expression: missing \)"):
        own_pattern("(")
    for pattern in ("", "a{999999999999}", "(" * 5000):
        with pytest.raises(UserError, match=r"^--keep .{5,300}$"):
            own_pattern(pattern)


HOSTILE = ["{", "{{", "{{{a", "{%", "${", "{n,plural,", "{n,plural,{a}", "{n,plural,}", "{ ", "{:", "{a:,", "a@{"]
HOSTILE += ["a@{}", "#a-", "#a/#", "%(", "%(,", "%1$(-", "%<,", "%,(-#", "{a}/", "{a}, ", "%1", "%0", "$t(", "[X1"]
HOSTILE += ["<a"]
HOSTILE += ["@a", "@", "@a.", "#a", "#", ":a", ":a:", ":", "v1.", "v1.2", "`", "`a ", "``a", "a@", "a.", "www."]
HOSTILE += ["http://(", "http://{", "http://{a", "http://{{a}", "[^", " "]
HOSTILE += ["{name} ", "{name}, a ", "%s.", "(%s ", "a{b}"]
HOSTILE += [("%", "0"), ("%1$", "0"), ("%(a)", "0"), ("%.", "0")]  # zeros are flags and digits; once begun


def test_hostile_text_takes_linear_time():
    """Eight times the text takes at most 24 times the time of this thread; quadratic time would be 64 times."""

    def seconds(pattern: str | tuple[str, str], size: int) -> float:
        start, repeated = pattern if isinstance(pattern, tuple) else ("", pattern)
        text = f"a {start}{repeated * (size // len(repeated))} b"
        began = time.thread_time()
        beginnings(text, "en", KEPT.spans(text))
        restored(text, lambda texts: [Translated(texts[0])])
        return time.thread_time() - began

    def is_slow(pattern: str | tuple[str, str]) -> bool:
        tries = []
        for _ in range(6):
            tries.append([seconds(pattern, size) for size in (1_000, 8_000)])
            short, long = map(min, zip(*tries, strict=True))
            if long <= 24 * short + 0.01:
                return False
        return True

    assert [pattern for pattern in HOSTILE if is_slow(pattern)] == []


def test_a_sentence_does_not_end_within_a_kept_part():
    text = "See {user.Name!} now. Read https://example.org/a.B?C! Write `a. B`! {{ a. B }} sleeps."
    sentences = ["See {user.Name!} now.", "Read https://example.org/a.B?C!", "Write `a. B`!", "{{ a. B }} sleeps."]
    assert [piece.sentence for piece in cut(text, "en")] == sentences


# -- where it goes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat {0} sleeps.", "SLEEPS. CAT {0} THE"),
        ("The cat {0}.", "CAT {0}. THE"),
        ("{0} sleeps", "{0} SLEEPS"),
        ("{0}, {1} sleeps", "{0}, {1} SLEEPS"),
        ("@anna: it sleeps", "@anna: SLEEPS IT"),
        ("It sleeps, {0}!", "SLEEPS, {0}! IT"),
        ("{0}'s cat", "{0} CAT 'S"),
        ("{0}px wide", "{0} WIDE PX"),
        ("<x/>the", "<x/>THE"),
        ("<x/>{0}the", "<x/>{0}THE"),
        ("a {0}{1} b", "B A {0}{1}"),  # as one
        ("a {0}/{1} b", "B A {0}/{1}"),
        ("%02d:%02d, b {0}.{1}-{2}_{3} c", "%02d:%02d, C B {0}.{1}-{2}_{3}"),
        ("b {0}({1}) c", "C {0}({1}) B"),  # brackets belong to the text
        ("  {0}  %s ", "{0}  %s"),  # nothing to translate
        ("{0}: ***", "{0}: ***"),
    ],
)
def test_where_a_kept_word_goes(text, expected):
    assert restored(text).text == expected


def test_the_page_puts_them_in_the_same_places():
    """Among the words of the text itself in capitals."""
    texts = ["{a}{b} the cat", "%d%% it", '<x id="1"/>the cat', "the {a}cat", 'the <x id="1"/>old cat', "cat{a} it"]
    texts += ["it sees {a}/{b} now", "{h}:{m} it", "it sleeps, {0}!", "{0}, it sleeps", "it {0}."]
    module = Path(export.__file__).parent / "page" / "translator.js"
    script = f"""
        import {{ takeOut, putBack }} from {json.dumps(module.as_uri())};
        const pattern = new RegExp({json.dumps(in_javascript())}, "gu");
        const placed = (text) => {{
          const [left, kept] = takeOut(text, pattern);
          const words = Array.from(left.matchAll(/[a-z]+|[^a-z]+/g), ({{ 0: part, index }}) => {{
            const isWord = /[a-z]/.test(part);
            const written = part.replaceAll("\\u2060", "").replace(/ +/g, " ").toUpperCase();
            return {{ text: written, isWord, from: isWord ? [{{ start: index, weight: 1 }}] : [] }};
          }});
          while (!words[0].text.trim()) words.shift();
          return putBack(words.filter(({{ text }}) => text), kept, text, left).map(({{ text }}) => text).join("");
        }};
        console.log(JSON.stringify({json.dumps(texts)}.map(placed)));
    """

    def in_capitals(read: list[str]) -> list[Translated]:
        return [Translated(text.upper(), [(word, word) for word in range(len(text.split()))]) for text in read]

    assert node("--input-type=module", "-e", script) == [restored(text, in_capitals).text for text in texts]


def test_links_are_those_of_the_written_words():
    """Each word is linked to itself, in capitals; a kept word of several words too."""
    text = "The {{ a b }} cat, which I see, sleeps ({0} hours) {1}"
    found = restored(text)
    source, target = text.split(), found.text.split()
    pairs = {(source[first], target[second]) for first, second in found.links}
    assert {
        ("{{", "{{"),
        ("a", "a"),
        ("b", "b"),
        ("}}", "}}"),
        ("cat,", "CAT,"),
        ("see,", "SEE,"),
        ("{1}", "{1}"),
    } <= pairs
    assert {second for _, second in found.links} == set(range(len(target)))
    assert all(one.upper() in other.upper() or "{0}" in one + other for one, other in pairs)


@pytest.mark.parametrize("seed", range(200))
def test_each_kept_word_comes_back_once_with_any_links(seed):
    choose = random.Random(seed)
    count = choose.randint(1, 8)
    used = choose.sample(KINDS, count)
    parts = used + choose.choices(["cat", "sees", ",", ".", "(", ")", "'s", "12:30"], k=choose.randint(0, 12))
    choose.shuffle(parts)
    text = "".join(f"{part}{choose.choice([' ', ' ', ''])}" if part in ".,()'s" else f" {part} " for part in parts)
    found = kept(text)

    def any_words(texts: list[str]) -> list[Translated]:
        words, target = texts[0].split(), choose.choices(["Katze", "sieht", "x.", ",", "(y"], k=choose.randint(0, 9))
        links = [(a, b) for a in range(len(words)) for b in range(len(target)) if choose.random() < 0.2]
        return [Translated(" ".join(target), links)]

    written = restored(text, any_words)
    for word in set(found):
        assert written.text.count(word) >= found.count(word)
    assert sorted(kept(written.text)) == sorted(found)
    assert all(0 <= a < len(text.split()) and 0 <= b < len(written.text.split()) for a, b in written.links)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_keeps_those_together_that_have_only_punctuation_between_them(format):
    texts = {
        "The cat {a}/{b} sleeps, {c}!": "SLEEPS, {c}! CAT {a}/{b} THE",
        "{d}: The %s/%s gives": "{d}: GIVES THE %s/%s",
        "{e}, {f} sleeps": "{e}, {f} SLEEPS",
    }
    for text, expected in texts.items():
        written = in_document(format, text)
        found = written if format in CATALOGS else " ".join(text_of(format, written).split())
        assert found == (catalog(format, [text], [expected]) if format in CATALOGS else expected)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_keeps_them(format):
    text = "The {user_name} sees %s at https://a.org/b_c_ now [X4X].\n"

    written = in_document(format, text.strip() if format in CATALOGS else text)
    if format in CATALOGS:
        assert written == catalog(format, [text.strip()], ["NOW [X4X]. AT https://a.org/b_c_ SEES %s THE {user_name}"])
        return
    found = text_of(format, written)
    assert kept(found) == ["https://a.org/b_c_", "[X4X]", "%s", "{user_name}"][:0] or sorted(kept(found)) == sorted(
        kept(text)
    )
    assert found.split() == [
        "NOW",
        "[X4X].",
        "AT",
        "https://a.org/b_c_",
        "SEES",
        "%s",
        "THE",
        "{user_name}",
    ]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder():
    return one_vocabulary()


@pytest.fixture
def run(folder, monkeypatch):
    return partial(run_translate, monkeypatch, folder)


def with_name(sentence: str) -> str:
    return sentence.replace(" ", " {name} ", 1)


def test_the_rest_of_a_line_is_translated_as_without_its_kept_words(run, folder, monkeypatch):
    expected = by_hand(folder, SENTENCES[:6])
    text = lines(*map(with_name, SENTENCES[:6]), "", "{0}, %s", *SENTENCES[:6])
    aligned = []
    monkeypatch.setattr(Translator, "translate_batch", _noting(aligned))
    code, output, error = run(text)
    found = output.decode().split("\n")
    assert (code, error, found[6:]) == (0, "", ["", "{0}, %s", *expected, ""])
    assert [line.count("{name}") for line in found[:6]] == [1] * 6
    assert [line.replace("{name}", " ").split() for line in found[:6]] == [line.split() for line in expected]
    assert sorted(aligned) == [(0, 6), (1, 6)]  # only for the lines with kept words
    for format in ("text", "lines"):
        assert run(text, format=format)[1] == output
    everything = columns(run(text, n_best=3, alignments=True)[1])
    assert {row[3].count("{name}") for row in everything if int(row[0]) <= 6} == {1}
    assert [row for row in everything if row[0] == "8"] == [["8", "1", "0.0000", "{0}, %s", ""]]


def _noting(aligned: list, translate_batch=Translator.translate_batch):
    def noting(self, texts, tokens, align=0, **settings):
        aligned.append((align, len(texts)))
        return translate_batch(self, texts, tokens, align=align, **settings)

    return noting


def columns(output: bytes) -> list[list[str]]:
    return [row.split("\t") for row in output.decode().splitlines()]


def test_alignments_count_the_words_of_the_written_line(run):
    """A kept word at the beginning moves all others by one."""
    ((text, found),) = columns(run(lines(SENTENCES[0]), alignments=True)[1])
    moved = [f"{int(source) + 1}-{int(target) + 1}" for source, target in re.findall(r"(\d+)-(\d+)", found)]
    for others in ([], [str(one_vocabulary())]):  # an ensemble too
        assert columns(run(lines(f"%s {SENTENCES[0]}"), alignments=True, others=others)[1]) == [
            [f"%s {text}", " ".join(["0-0", *moved])]
        ]


def test_what_keep_matches_stays(run):
    first, second = SENTENCES[0].split()[:2]
    options = {"keep": [f"{first} {second}", "x*"]}
    for format in (None, "text", "markdown", "html"):
        assert run(lines(SENTENCES[0]), format=format, **options)[1].decode().startswith(f"{first} {second} ")
    code, output, error = run(b"a\n", keep=["a", "["])
    assert (code, output) == (2, b"")
    assert re.fullmatch(r"error: --keep \[: not a regular expression: .*\n", error)


def test_models_of_other_pairs_read_everything(tmp_path, monkeypatch):
    """The input of such a model may look like a placeholder."""
    folder = make_folder(tmp_path / "model", updates=1)
    config = load_config(str(folder))
    config.custom_pipelines = pipelines_for(TEXT2TEXT)
    config.save_pretrained(folder)
    read = []
    monkeypatch.setattr(Translator, "translate", lambda self, texts, *_, **__: read.extend(texts) or [])
    text = "a %s [C@H](N) `b`"
    run_translate(monkeypatch, folder, lines(text))
    assert read == [text]
    code, _, error = run_translate(monkeypatch, folder, lines(text), keep=["a"])
    assert (code, error.count("\n")) == (2, 1)
    assert "it is for translators" in error


# -- models that read reserved characters, in documents ----------------------------------------------------------------


@pytest.mark.parametrize("format", [*CATALOGS, "text", "html", "markdown"])
def test_kept_words_are_words_of_sentences_to_models_that_copy_them(format):
    """So no sentence lacks its subject, and each begins where it does."""
    document = document_of(format, "{name} sleeps. The old {b} sees {name} and v1.2.")
    written = translate_document(document, format, by_copying, replace(KEPT, are_read=True))
    assert "sleeps. {name} v1.2. and {name} sees {b} old The" in written


def test_many_kept_words_are_written_as_they_are_within_markup():
    words = [f"{{a_{number}}}" for number in range(12)]
    page = f"<p><b>{' '.join(words)}</b> or http://a.b/?c&amp;d=_e_ see &lt;{{{{f}}}}&gt;</p>"
    written = translate_document(page, "html", by_copying, replace(KEPT, are_read=True))
    assert re.sub("<[^>]+>", "", written).split() == re.sub("<[^>]+>", "", page).split()[::-1]
