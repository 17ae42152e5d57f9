"""Markdown: blocks and inline markup stay, as another parser reads them; every sentence is translated."""

import re
from collections import Counter

import pytest
from lxml import html
from markdown import markdown
from stand_ins import Shouting, backwards

from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.apps.documents.paragraphs import Translated

PAGE = """---
title: secret
---
# The *old* man

Some **bold text** with `secret code` and a [link to docs](http://x.y/z_secret "A title"), then
[ref link][r] and [shortcut] plus ![a cat](cat.png). Snake_case 2 \\* 3 &copy; 2026.
A hard break  
next line <b>html</b> and <http://auto.secret>. Done <i translate="no">*secret* name</i>.

> A quote, line one
> line two
>
> - nested *item **strong** in* list
>   more of it

1.  First item
    continued here

    second paragraph

2.  Second

| Head | Two |
|------|:---:|
| a \\| b | `secret` text |
|  | cell |

```python
secret = "block"
```

    secret code

Setext title
============

<div align="center" title="Read">
  <p>Html <b>block</b> text</p>
</div>

***

Some text_with_ and __strong under__.

[r]: http://ref/x "secret title"
[shortcut]: <http://s.secret>
"""


def structure(page: str, ordered: bool = True):
    """The tags and addresses of a page, as Python-Markdown reads it."""
    page = re.sub(r"\A---\n.*?---\n", "", page, flags=re.DOTALL)
    found = []
    for element in html.fromstring("<main>" + markdown(page, extensions=["tables"]) + "</main>").iter():
        found.append((element.tag, element.get("href"), element.get("src")))
    return found if ordered else Counter(found)


def test_the_structure_stays_and_the_text_is_translated():
    found = translate_document(PAGE, "markdown", Shouting())
    assert structure(found) == structure(PAGE)
    for part in (
        "---\ntitle: secret\n---\n# THE *OLD* MAN\n",
        'SOME **BOLD TEXT** WITH `secret code` AND A [LINK TO DOCS](http://x.y/z_secret "A TITLE"), THEN\n',
        "[REF LINK][r] AND [SHORTCUT][shortcut] PLUS ![A CAT](cat.png). SNAKE_CASE 2 \\* 3 &copy; 2026.\n",
        'A HARD BREAK  \nNEXT LINE <b>HTML</b> AND <http://auto.secret>. DONE <i translate="no">*secret* name</i>.\n',
        "> A QUOTE, LINE ONE\n> LINE TWO\n>\n> - NESTED *ITEM **STRONG** IN* LIST\n>   MORE OF IT\n",
        "1.  FIRST ITEM\n    CONTINUED HERE\n\n    SECOND PARAGRAPH\n\n2.  SECOND\n",
        "| HEAD | TWO |\n|------|:---:|\n| A \\| B | `secret` TEXT |\n|  | CELL |\n",
        '```python\nsecret = "block"\n```\n\n    secret code\n\nSETEXT TITLE\n============\n',
        '<div align="center" title="READ">\n  <p>HTML <b>BLOCK</b> TEXT</p>\n</div>\n\n***\n',
        "__STRONG UNDER__",
        '[r]: http://ref/x "secret title"\n[shortcut]: <http://s.secret>\n',
    ):
        assert part in found


def test_markup_goes_around_the_words_that_translate_its_own():
    found = translate_document(PAGE, "markdown", backwards)
    assert structure(found, ordered=False) == structure(PAGE, ordered=False)
    assert "# MAN *OLD* THE\n" in found
    assert '[DOCS, TO LINK](http://x.y/z_secret "TITLE A")' in found
    assert "*IN **STRONG**" in found


@pytest.mark.parametrize(
    ("text", "translation", "links", "expected"),
    [
        ("Is it **true**?", "Est-ce vrai ?", [(0, 0), (2, 1)], "Est-ce **vrai** ?"),
        ("Is it **true**?", "Est-ce vrai\N{NO-BREAK SPACE}?", [(0, 0), (2, 1)], "Est-ce **vrai**\N{NO-BREAK SPACE}?"),
        ("Note: [read this](u) first", "Attention ! lisez ceci avant", [(0, 0), (1, 1), (1, 2), (2, 3), (3, 4)], None),
    ],
)
def test_a_mark_that_is_a_word_of_its_own_stays_outside_with_its_space(text, translation, links, expected):
    found = translate_document(text, "markdown", lambda given: [Translated(translation, links)])
    assert found == (expected or found)
    assert structure(found, ordered=False) == structure(text, ordered=False)


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("#hashtag is nice", "# Hashtag ist schön", "\\# Hashtag ist schön"),
        ("-5 degrees", "- 5 Grad", "\\- 5 Grad"),
        ("-5 degrees", "-5 Grad", "-5 Grad"),
        ("#a b", "#b a", "#b a"),
        ("A list", "- b", "\\- b"),
    ],
)
def test_a_paragraph_stays_one(text, translation, expected):
    assert translate_document(text, "markdown", lambda given: [Translated(translation)]) == expected


def test_a_rule_at_the_beginning_is_no_front_matter():
    text = "---\n\nwelcome to the guide\n\n---\n\nmore text\n"
    assert translate_document(text, "markdown", Shouting()) == text.upper()
    for front in ("---\ntitle: secret\n---\n", "---\n---\n", "+++\na = 1\n\nb = 2\n+++\n"):
        assert translate_document(f"{front}a", "markdown", Shouting()) == f"{front}A"


def test_what_is_protected_is_not_read():
    translate = Shouting()
    translate_document(PAGE, "markdown", translate)
    assert "secret" not in "\n".join(translate.given)


@pytest.mark.parametrize(
    "text",
    ["", "x", "#", "- - -\n", "| a\n|--\n", "[x]: y", "\ta\n\tb", "a\\", "**", "~~~\nx", "- a\n\n\tb\n", "*a **b* c**"],
)
def test_nothing_is_lost(text):
    found = translate_document(text, "markdown", lambda given: [Translated(each) for each in given])
    assert markdown(found) == markdown(text)


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("one", "1. *a* [b] <c> _d_ `e` f_g", "1\\. \\*a\\* \\[b\\] \\<c> \\_d\\_ \\`e\\` f_g"),
        ("one", "- a", "\\- a"),
        ("b\\\n2. c", "1. a", "1\\. a\\\n1\\. a"),
        ("# 2. b", "1. a", "# 1\\. a"),
        ("# 1. b", "1. a", "# 1. a"),
        ("- one", "# a", "- \\# a"),
        ("one *two*", "", ""),
        ("- one  \n  two", "+ a", "- \\+ a  \n  \\+ a"),
        ("| a |\n|---|", "b|c", "| b\\|c |\n|---|"),
    ],
)
def test_a_translation_is_not_taken_for_markup(text, translation, expected):
    assert translate_document(text, "markdown", lambda given: [Translated(translation)] * len(given)) == expected


@pytest.mark.parametrize(
    "text",
    [
        # Code at the beginning or end of other markup.
        "See [`a` b](u).",
        "x *`a` b* y",
        "[`foo` function](u)",
        "(`a` b) and [`x`](u), [`y` `z` w](v).",
        "x **[`a` b](u)** y `c`.",
        "Text [`a`.](u) b (*`c` d*) e",
        "*a `b` c `d`* e `f`'s g [h `i`](u) j",
        # Addresses in which there are characters of markup.
        "See https://en.wikipedia.org/wiki/Machine_translation_x now.",
        "https://x.y/a_b_c~d*e and a_b_c@x.y",
        "to https://x.y/a\\_b?c=1&amp;d=2, x",
        # Markup within words.
        "**a***b* c",
        # Mathematics, which Markdown's own rules would read as emphasis.
        "Let $a_i$ and $\\frac{b_i}{2}$ be (eq. $1$)\n\n$$\\sum_i a_i *\\\\* b$$\n\n| a_1 | $b_1$, $c$ |\n|---|---|",
        "It costs $5 or $6, so $x. `$HOME` and `$PATH`, $7 or $8$.",
        # Headings and cells that begin as a list would.
        "## 1. Text\n\n| 2. a |\n|---|\n| - b |",
    ],
)
def test_a_round_trip(text):
    assert translate_document(text, "markdown", lambda given: [Translated(each) for each in given]) == text


@pytest.mark.parametrize(
    "text",
    ["See (`a`, `b`) here.", "([`x`](u), `y`, *z*, `v` `w`)", "a (`b` , c) `d` `e`: f `g`", '"`a` `b`" and (`c`, `d`)'],
)
def test_spaces_between_code_stay(text):
    def same(given: list[str]) -> list[Translated]:
        return [Translated(each, [(place, place) for place in range(len(each.split()))]) for each in given]

    assert translate_document(text, "markdown", same) == text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("> <p>Hi there</p>\n", ["Hi there"]),
        ('- <div\n  title="One two">\n  Some\n  text</div>\n\n> > <p>a</p>', ["Some text", "a", "One two"]),
        ("Text[^src] more.\n\n[^src]: https://example.com/a", ["Text more."]),
        (
            "Text[^s] more.\n\n[^s]: Word\n[^t_u_]: Two words\n",
            ["Text more.", "Word", "Two words"],
        ),
        ("> [!NOTE]\n> Some text\n> here.", ["Some text here."]),
        ("# A title {#a_title_x}\n\nSee {#id} x.", ["A title", "See {#id} x."]),
        # Addresses of every kind.
        ("See [a file](file:///a_b_c) now.\n\n[f]: file:///x", ["See a file now."]),
        ("![A dog](data:image/svg+xml;base64,aa_b_=) Here [is](JavaScript:f(1)).", ["Here is.", "A dog"]),
        ("Go <file:///a_b_c> on, <data:text/plain,x>.\n\n[a b]: <vbscript:x> 'y'", ["Go on,."]),
        ("A dog[1](#a) and [[2]](u) in [2019](v).", ["A dog1 and in 2019."]),
        # Attributes of blocks and of what is within them.
        ("# Dogs\n{: .x }\n\n{: .y }\nWe go.\n{:.z}\n\n1. Cats\n{:toc}", ["Dogs", "We go.", "Cats"]),
        ("A [dog](u){: .x } and ![cat](v){ width=3 } `c`{.py} are *old*{: #z}.", ["A dog and are old.", "cat"]),
    ],
)
def test_what_is_beside_the_text(text, read):
    given = []

    def translate(paragraphs):
        given.extend(paragraphs)
        return [Translated(each) for each in paragraphs]

    found = translate_document(text, "markdown", translate)
    assert (given, found) == (read, text)


def test_addresses_are_not_read():
    translate = Shouting()
    translate_document("See https://x.y/a_b_c&amp;d[e now.", "markdown", translate)
    assert translate.given == ["See now."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- The first item\n  and more.\n- Second\n", "- \u7b2c\u4e00\n- \u7b2c\u4e00\n"),
        ("Two\nlines\n=====\n", "\u7b2c\u4e00\n=====\n"),
    ],
)
def test_a_translation_without_spaces_has_one_line(text, expected):
    assert translate_document(text, "markdown", lambda given: [Translated("\u7b2c\u4e00") for _ in given]) == expected


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("Read _Google_'s guide.\n", "Lies Googles Leitfaden.", "Lies *Google*s Leitfaden.\n"),
        ("Read _this_ guide.\n", "Lies diesen Leitfaden.", "Lies _diesen_ Leitfaden.\n"),
    ],
)
def test_emphasis_within_a_word(text, translation, expected):
    assert translate_document(text, "markdown", lambda given: [Translated(translation) for _ in given]) == expected


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("- `--port`: the port\n", "the port"),
        ("- `-p`, `--port` \u2013 the port\n", "the port"),
        ("- `x`, which is big\n", ", which is big"),
        ("- `x` is big: y\n", "is big: y"),
        ("- `x`:\n", None),
    ],
)
def test_a_label_in_code_stays(text, seen):
    given = []

    def translate(sentences: list[str]) -> list[Translated]:
        given.extend(sentences)
        return [Translated(sentence) for sentence in sentences]

    assert translate_document(text, "markdown", translate) == text
    assert given == ([] if seen is None else [seen])


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("cost $100. I have 50$.", ["cost $100. I have 50$."]),
        ("I paid $5,\nhe paid 10$.", ["I paid $5, he paid 10$."]),
        ("R$5 and R$ six, US$ 5 or $HOME/$x", ["R$5 and R$ six, US$ 5 or $HOME/$x"]),
        ("**$5** or **6$**", ["$5 or 6$"]),
        ("Let $x$, $a_i + 1$ and $\\mathrm{softmax}(E h_t)$ be", ["Let, and be"]),
        ("One $$ and two $$ here", ["One $$ and two $$ here"]),
    ],
)
def test_sums_of_money_are_no_formulas(text, read):
    translate = Shouting()
    translate_document(text, "markdown", translate)
    assert translate.given == read
