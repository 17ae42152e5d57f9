"""HTML: tags stay as lxml reads them, every sentence is translated, and protected elements are not read."""

from collections import Counter

import pytest
from lxml import html
from stand_ins import always, backwards, changed

from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.apps.translate.paragraphs import translate_paragraphs
from modeling_scratch.errors import UserError

PAGE = """<!DOCTYPE html>
<html lang="en"><head><title>Cats &amp; dogs</title><meta charset=utf-8><meta name="description" content='About us'>
<style title="secret">p { color: red }</style><script>if (a < b) { say("<p>secret</p>"); }</script></head>
<body class=wide><!-- secret <b>note</b> -->
<h1 title="The &quot;big&quot; one">The <em>old</em> man</h1>
<p>See <a href="x.html?a=1&amp;b=2" title="More">the big docs</a>, then run <code>secret run</code>. &copy; 2026.<br>
Then <b>all is bold <i>and italic</i></b> here.<p>An open paragraph <b>bold
<ul><li>One <img src=a.png alt="A cat"> cat<li>Two <ul><li>nested <u>deep</u></ul></ul>
<p translate="no">A <b>secret</b> name</p><pre>secret
  code</pre><div class="notranslate x"><div>secret</div> secret</div>
<table><tr><th>Head<td>Cell<td>1,234<td>a < b & c</table>
<p>H<sub>2</sub>O, see https://secret.org/a_b. <a href="#top"><img src="y.png"></a> <a id=q></a>Now.</p>
<input placeholder=Name type=text><button>Go</button><textarea placeholder=Why>secret</textarea>
<textarea translate=no title=secret></textarea>
<p>&lt;tag&gt; stays.</p></div></span>
</body></html>
"""


def tags(page: str) -> list:
    """The tags of a page, with the attributes that are not translated."""
    translated = {"title", "alt", "placeholder", "content"}
    return [
        (str(element.tag), *sorted(item for item in element.attrib.items() if item[0] not in translated))
        for element in html.document_fromstring(page).iter()
    ]


def test_tags_stay_and_text_is_translated_except_in_protected_elements():
    found, read = changed(PAGE, "html", str.upper)
    assert tags(found) == tags(PAGE)
    assert not any(part in "\n".join(read) for part in ("secret", "<b", "&amp;", "color"))
    for part in (
        "<title>CATS &amp; DOGS</title>",
        'content="ABOUT US"',
        '<h1 title="THE &quot;BIG&quot; ONE">THE <em>OLD</em> MAN</h1>',
        'SEE <a href="x.html?a=1&amp;b=2" title="MORE">THE BIG DOCS</a>, THEN RUN <code>secret run</code>. &copy; 2026',
        "THEN <b>ALL IS BOLD <i>AND ITALIC</i></b> HERE.<p>AN OPEN PARAGRAPH <b>BOLD\n",
        '<li>ONE <img src=a.png alt="A CAT"> CAT<li>TWO <ul><li>NESTED <u>DEEP</u></ul></ul>',
        "<tr><th>HEAD<td>CELL<td>1,234<td>A &lt; B &amp; C</table>",
        'H<sub>2</sub>O, SEE https://secret.org/a_b. <a href="#top"><img src="y.png"></a> <a id=q></a>NOW.',
        '<input placeholder="NAME" type=text><button>GO</button><textarea placeholder="WHY">secret</textarea>',
        "&lt;TAG&gt; STAYS.",
    ):
        assert part in found


def test_tags_go_around_the_translations_of_their_words():
    found = translate_document(PAGE, "html", backwards)
    assert Counter(tags(found)) == Counter(tags(PAGE))
    assert "MAN <em>OLD</em> THE</h1>" in found
    assert (
        'RUN <code>secret run</code>. THEN <a href="x.html?a=1&amp;b=2" title="MORE">DOCS, BIG THE</a> SEE<br>' in found
    )
    assert "HERE. <b><i>ITALIC AND</i> BOLD IS ALL</b> THEN" in found


@pytest.mark.parametrize(
    ("page", "translation", "links", "expected"),
    [
        # Linked words that are apart, with a word linked to others or to nothing between them.
        ("<b>a b</b> c", "B C x A", [(1, 0), (2, 1), (0, 3)], "<b>B</b> C x A"),
        ("<b>a b</b> c", "A x B C", [(0, 0), (1, 2), (2, 3)], "<b>A x B</b> C"),
        # No links.
        ("a <i>b</i> <a href=u>c</a>", "A B", [(0, 0), (1, 1)], "<a href=u>A</a> <i>B</i>"),
        # More links than words.
        ("<a href=u>a</a> <a href=v>b</a>", "A", [(0, 0)], "<a href=u>A</a><a href=v></a>"),
        # One word translates two, only one of them in an element.
        ("He does not <b>sleep</b>", "Er schläft nicht", [(0, 0), (1, 1), (3, 1), (2, 2)], "Er <b>schläft</b> nicht"),
        # Parts of a word, which are found in the translation or not.
        ("un<b>do</b>ing", "UN do ING", [], "UN <b>do</b> ING"),
        ("<b>a</b><i>b</i> c", "X C", [(0, 0), (1, 1)], "<b>X</b><i></i> C"),
        # Around all of a text, also marks that only the translation has: EPUB allows no text beside links in contents.
        ("<li><a href=u><b>a</b></a></li>", "A.", [(0, 0)], "<li><a href=u><b>A.</b></a></li>"),
        # In proportion.
        ("a b <i>c d</i>", "A B C D E F", [], "A B C <i>D E F</i>"),
        ("<i>a</i> b", "", [], "<i></i>"),
    ],
)
def test_where_a_tag_goes(page, translation, links, expected):
    assert translate_document(page, "html", always(translation, links)) == expected


@pytest.mark.parametrize(
    "page",
    [
        "See <a href=u><img src=x> Home</a> now.",
        "<a href=u>Home <img src=x></a> now",
        "<a><img> <img></a> x <a href=u><img><img> y</a>",
        "<p>one <code>a</code>, <b><code>b</code> two</b>.</p>",
        "x <b>a</b><i>b</i><u>c</u> d <b>e</b>f",
        "un<b>d<i>o</i></b>ing foo<b>o <i>p</i></b>q",
        "https://x.y/?a=1&amp;b=2 x",
        "<b>x" * 1_000 + "</b>" * 1_000,
    ],
    ids=lambda page: page[:20],
)
def test_a_page_whose_text_stays_is_unchanged(page):
    assert changed(page, "html")[0] == page


@pytest.mark.parametrize(
    "page", ["", "\n", "no tags", "<p", "<p>x</", "<b>x<p>y</b>z", "&#; &#x & <>", "<!-- x", "<script>x", "<![a b>c"]
)
def test_nothing_is_lost_from_a_broken_page(page):
    assert changed(page, "html")[0].replace("&amp;", "&").replace("&lt;", "<") == page


def test_too_many_unclosed_tags_are_refused():
    with pytest.raises(UserError, match="not closed"):
        translate_document("<!--" * 5000, "html", always("a"))


@pytest.mark.parametrize("text", ["caf&#233es", "R&#D", "R&#D;", "&#x;", "a &# b"])
def test_text_after_an_invalid_reference_is_still_parsed(text):
    """Python's parser takes all of it for text."""
    page = f"<p>{text}</p><p>Hello <b>you</b></p><script>secret();</script><p>R&#D &#65;</p>"
    found, _ = changed(page, "html", str.upper)
    assert found.endswith("</p><p>HELLO <b>YOU</b></p><script>secret();</script><p>R&amp;#D A</p>")
    first = [html.document_fromstring(version).find(".//p").text for version in (found, page)]
    assert first[0] == first[1].upper()


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        # Entities stay where their characters could not stand, or would be invisible.
        (
            "<p>a&#32;b caf&#101; &#8212; &quot;c&quot; &#60;d&#62;</p>",
            "<p>A B CAFE &#8212; &quot;C&quot; &#60;D&#62;</p>",
        ),
        # Comments.
        ('<p><!-- <img alt="Some text"> --> Text</p>', '<p><!-- <img alt="Some text"> --> TEXT</p>'),
        ("<p><?php echo title='Some text' ?> Text</p>", "<p><?php echo title='Some text' ?> TEXT</p>"),
        ("<p><!x alt='a b'> Text</p>", "<p><!x alt='a b'> TEXT</p>"),
        # Links and addresses.
        (
            '<nav><a href="/">Home</a><a href="/d">Docs</a></nav>',
            '<nav><a href="/">HOME</a><a href="/d">DOCS</a></nav>',
        ),
        ('<p>See <a id="x"></a><a href="y">the docs</a>.</p>', '<p>SEE <a id="x"></a><a href="y">THE DOCS</a>.</p>'),
        ('<p>So<a href="1">[1]</a><a href="2">[2]</a> he.</p>', '<p>SO<a href="1">[1]</a><a href="2">[2]</a> HE.</p>'),
        ('<input placeholder="you@example.com" title="https://example.com/a">',) * 2,
        ("<p>Ask https://example.com/docs。Then go.</p>", "<p>ASK https://example.com/docs。THEN GO.</p>"),
        ("<p>See https://x.org/Rust_(language) now.</p>", "<p>SEE https://x.org/Rust_(language) NOW.</p>"),
        ("<p>(See https://x.org/a) now.</p>", "<p>(SEE https://x.org/a) NOW.</p>"),
    ],
)
def test_entities_comments_and_addresses_stay(page, expected):
    assert changed(page, "html", str.upper)[0] == expected


@pytest.mark.parametrize(
    ("page", "reversed"),
    [
        ("<p>10&#160;km and 5&#160;kg</p>", "<p>KG&#160;5 AND KM&#160;10</p>"),
        ("<p>a &ensp;b\u3000c&#8239;&thinsp;d e&nbsp;!</p>", "<p>!&nbsp;E D&#8239;&thinsp;C\u3000B &ensp;A</p>"),
        ("<b>a</b>&nbsp;|&nbsp;<i>b&emsp;c</i>", "<i>C&emsp;B</i>&nbsp;|&nbsp;<b>A</b>"),
        # Beside code, they stay with it.
        ("<p>a&nbsp;<code>x</code>&nbsp;b c</p>", "<p>C B&nbsp;A&nbsp;<code>x</code></p>"),
        ("<p>a&nbsp;<code>x</code> b</p>", "<p>B A&nbsp;<code>x</code></p>"),
        ("<p>a b&nbsp;<br>&nbsp;c</p><p>&nbsp;</p>", "<p>B A&nbsp;<br>&nbsp;C</p><p>&nbsp;</p>"),
    ],
)
@pytest.mark.parametrize("format", ["html", "markdown"])
def test_white_space_that_browsers_show_stays_between_the_translations_of_its_words(page, reversed, format):
    if format == "markdown":
        page, reversed = (
            version.removeprefix("<p>").replace("<p>", "\n\n").replace("</p>", "") for version in (page, reversed)
        )
    assert changed(page, format, str.upper)[0].lower() == page
    assert translate_document(page, format, backwards) == reversed


def test_a_translation_in_one_word_has_no_space():
    assert translate_document("<p>10&nbsp;km</p>", "html", always("10km")) == "<p>10km</p>"


@pytest.mark.parametrize(
    "inner",
    ["<math><mi>secret</mi></math>", '<svg><use href="#a"></use><title>secret</title></svg>', '<svg class="x"/>'],
)
def test_a_formula_or_picture_does_not_end_a_sentence(inner):
    page = f"<p>Let {inner} be a prime number.</p>"
    assert changed(page, "html") == (page, ["Let be a prime number."])


def test_a_page_that_declares_another_encoding_gets_references():
    page = '<meta charset="iso-8859-1"><p>The child sleeps.</p>'
    assert translate_document(page, "html", always("Es schläft.")) == page.replace(
        "The child sleeps", "Es schl&#228;ft"
    )


# References of pandoc 3.9 (EPUB 3 and 2, HTML), EbookLib's users, LibreOffice, Word, Asciidoctor, MediaWiki, Sphinx and
# Python-Markdown.
@pytest.mark.parametrize(
    "reference",
    [
        '<a href="#fn1" class="footnote-ref" id="fnref1" epub:type="noteref">1</a>',
        '<a href="ch001.xhtml#fn1" class="footnote-ref" id="fnref1"><sup>1</sup></a>',
        '<a href="#fn1" role="doc-noteref">12</a>',
        '<sup><a epub:type="noteref" href="notes.xhtml">a</a></sup>',
        '<span epub:type="noteref"><a href="#n">iv</a></span>',
        '<a href="#note">3</a>',
        '<a href="#note">†</a><a href="#other">2</a>',
        '<a class="sdfootnoteanc" name="sdfootnote1anc" href="#sdfootnote1sym"><sup>1</sup></a>',
        '<a style="mso-footnote-id:ftn1" href="#_ftn1" name="_ftnref1" title=""><span class=MsoFootnoteReference><span '
        'style="x"><![if !supportFootnotes]><span class=MsoFootnoteReference><span lang=EN>[1]</span></span><![endif]>'
        "</span></span></a>",
        '<sup class="footnote">[<a id="r" class="footnote" href="#d">1</a>]</sup>',
        '<sup class="reference"><a href="#cite_note-1"><span class="cite-bracket">[</span>1<span class="cite-bracket">]'
        "</span></a></sup>",
        '<a href="#id2" id="id1" role="doc-noteref"><span class="fn-bracket">[</span>1<span>]</span></a>',
        '<sup id="fnref:1"><a class="footnote-ref" href="#fn:1">1</a></sup>',
        "<sup>1, 2</sup>",
        '<sup class="reference"><a href="#cite_note-a">[a]</a></sup>',
        '<sup class="reference"><a href="#cite_note-1"><span>[</span>note&#160;1<span>]</span></a></sup>',
        "<sup>[note 1]</sup>",
        '<sup>[<i><a href="/wiki/Sources">source needed</a></i>]</sup>',
        '<a role="doc-noteref" href="#n1">Note 1</a>',
        '<sup><a href="#fn1">a</a></sup>',
        '<a href="notes.html#n1"><sup>iv</sup></a>',
    ],
)
def test_a_reference_to_a_footnote_stays_between_its_sentences(reference):
    page = f"<p>The <em>cat</em> sleeps.{reference} The man sees it{reference}.</p>"
    read = []

    def translate(sentences):
        read.extend(sentences)
        return backwards(sentences)

    found = translate_document(page, "html", lambda given: translate_paragraphs(given, translate, "en", "de"))
    assert read == ["The cat sleeps.", "The man sees it."]
    assert found == f"<p>SLEEPS. <em>CAT</em> THE{reference} IT{reference}. SEES MAN THE</p>"


def test_the_title_of_a_reference_to_a_footnote_is_translated():
    page = '<p>A cat.<sup>[<a href="#d" title="View it.">1</a>]</sup></p>'
    assert changed(page, "html", str.upper)[0] == page.replace("A cat", "A CAT").replace("View it", "VIEW IT")


@pytest.mark.parametrize(
    "link",
    [
        '<a epub:type="noteref" href="#kiln">kiln</a>',  # of a word, which a reader explains in place
        '<a href="#part"> 3</a>',
        '(<a href="#part">3</a>)',
        '<a href="page">3</a>',
        '<a href="#mass">x<sup>i</sup></a>',
        '<a href="#first">1<sup>st</sup></a>',
        '<sup><a href="#new">new</a></sup>',
        '<sup><a href="page">a</a></sup>',
    ],
)
def test_other_links_are_read_with_their_sentence(link):
    text = html.fromstring(f"<p>{link}</p>").text_content()
    assert changed(f"<p>See the{link} now.</p>", "html")[1] == [f"See the{text} now."]


# The phrasing content of the HTML standard, section "Content models", as html-validate 10.17.0 has it, without <br>.
PHRASING = (
    "a abbr area audio b bdi bdo button canvas cite code data datalist del dfn em embed i iframe img input ins kbd "
    "label link map mark math meta meter noscript object output picture progress q ruby s samp script select slot "
    "small span strong sub sup svg template textarea time u var video wbr"
)
VOID = ("area", "embed", "img", "input", "link", "meta", "wbr")


@pytest.mark.parametrize("name", [*PHRASING.split(), "my-icon", "o:p", "font", "tt", "unknown"])
def test_phrasing_content_and_custom_elements_do_not_cut_a_sentence(name):
    element = f"<{name} id=x>" if name in VOID else f"<{name} id=x></{name}>"
    page = f"<p>The {element} old cat sleeps.</p>"
    found, read = changed(page, "html", str.upper)
    assert read == ["The old cat sleeps."]
    kept = "" if name == "ruby" else f"{element} "
    assert found == f"<p>THE {kept}OLD CAT SLEEPS.</p>"


def test_options_and_fallbacks_are_translated_beside_their_sentence():
    page = (
        "<p>Take <select id=s>\n<option value=a>one &amp; more</option>\n<option>two cats </option></select> of these, "
        '<video title="A film"><track src=x>An old page</video> man. <noscript>Allow <b>all</b>.</noscript></p>'
    )
    found, read = changed(page, "html", str.upper)
    assert read == ["Take of these, man.", "Allow all.", "one & more", "two cats", "A film", "An old page"]
    for part in ("Take", "one &amp; more", "two cats", "of these", "A film", "An old page", "man", "Allow", "all"):
        page = page.replace(part, part.upper().replace("&AMP;", "&amp;"))
    assert found == page


def test_controls_of_a_form_are_not_one_sentence():
    page = (
        "<p>Press <button>Save</button> or <button>Cancel</button> now.</p><form><label>Name</label> <input name=a>\n"
        "<label><i>Old</i> age <input name=b></label> <span><button>Go</button></span> <button>Stop</button></form>"
        "<my-tab>One</my-tab><my-tab>Two</my-tab>"
    )
    read = ["Press Save or Cancel now.", "Name", "Old age", "Go", "Stop", "One", "Two"]
    assert changed(page, "html") == (page, read)


@pytest.mark.parametrize(
    ("ruby", "base"),
    [
        ("<ruby>東京<rt>とうきょう</rt></ruby>", "東京"),
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rp>(</rp><rt>じ</rt><rp>)</rp></ruby>", "漢字"),
        ("<ruby><rb>漢<rb>字<rt>かん<rt>じ</ruby>", "漢字"),
        ("<ruby><rb>東京</rb><rtc><rt>とう</rt><rt>きょう</rt></rtc><rtc>Tokyo</rtc></ruby>", "東京"),
        ("<ruby><ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby><rt>Tokyo</rt></ruby>", "東京"),
        ("<ruby><a href=x>東京</a><rt><b>とう</b>きょう</rt></ruby>", "<a href=x>東京</a>"),
    ],
)
def test_the_base_of_ruby_is_read_with_its_sentence_and_its_reading_is_not(ruby, base):
    found, read = changed(f"<p>今日は{ruby}に行く。</p>", "html")
    assert read == [f"今日は{html.fromstring(f'<p>{base}</p>').text_content()}に行く。"]
    assert found == f"<p>今日は{base}に行く。</p>"


def test_ruby_without_words_stays():
    page = "<p><ruby>…<rt>!</rt></ruby></p>"
    assert changed(page, "html") == (page, [])
