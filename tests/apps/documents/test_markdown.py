"""Markdown: blocks and inline markup stay as another parser reads them, and every sentence is translated."""

import re
from collections import Counter

import pytest
from lxml import html
from markdown import markdown
from stand_ins import always, backwards, changed

from modeling_scratch.apps.documents.document import translate_document

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


def structure(page: str) -> list:
    """The tags and addresses of a page, as Python-Markdown reads it."""
    page = re.sub(r"\A---\n.*?---\n", "", page, flags=re.DOTALL)
    tree = html.fromstring("<main>" + markdown(page, extensions=["tables"]) + "</main>")
    return [(element.tag, element.get("href"), element.get("src")) for element in tree.iter()]


def test_structure_stays_and_text_is_translated_except_in_code():
    found, read = changed(PAGE, "markdown", str.upper)
    assert structure(found) == structure(PAGE)
    assert "secret" not in "\n".join(read)
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


def test_markup_goes_around_the_translations_of_its_words():
    found = translate_document(PAGE, "markdown", backwards)
    assert Counter(structure(found)) == Counter(structure(PAGE))
    assert "# MAN *OLD* THE\n" in found
    assert '[DOCS, TO LINK](http://x.y/z_secret "TITLE A")' in found
    assert "*IN **STRONG**" in found


@pytest.mark.parametrize(
    "text",
    ["", "x", "#", "- - -\n", "| a\n|--\n", "[x]: y", "\ta\n\tb", "a\\", "**", "~~~\nx", "- a\n\n\tb\n", "*a **b* c**"],
)
def test_nothing_is_lost(text):
    assert markdown(changed(text, "markdown")[0]) == markdown(text)


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        # Markup in a translation is escaped, also at the beginning of a line or cell.
        ("one", "1. *a* [b] <c> _d_ `e` f_g", "1\\. \\*a\\* \\[b\\] \\<c> \\_d\\_ \\`e\\` f_g"),
        ("b\\\n2. c", "1. a", "1\\. a\\\n1\\. a"),
        ("# 2. b", "1. a", "# 1\\. a"),
        ("# 1. b", "1. a", "# 1. a"),
        ("- one", "# a", "- \\# a"),
        ("- one  \n  two", "+ a", "- \\+ a  \n  \\+ a"),
        ("| a |\n|---|", "b|c", "| b\\|c |\n|---|"),
        ("#hashtag is nice", "# Hashtag ist schön", "\\# Hashtag ist schön"),
        ("-5 degrees", "- 5 Grad", "\\- 5 Grad"),
        ("-5 degrees", "-5 Grad", "-5 Grad"),
        # Emphasis is left out around no words, and uses * within a word.
        ("one *two*", "", ""),
        ("Read _Google_'s guide.\n", "Lies Googles Leitfaden.", "Lies *Google*s Leitfaden.\n"),
        ("Read _this_ guide.\n", "Lies diesen Leitfaden.", "Lies _diesen_ Leitfaden.\n"),
        # A translation without spaces has one line.
        ("- The first item\n  and more.\n- Second\n", "第一", "- 第一\n- 第一\n"),
        ("Two\nlines\n=====\n", "第一", "第一\n=====\n"),
        # An address is not joined to words.
        ("A dog(http://x.org/a and cat) runs.", "Hund und", "Hund http://x.org/a und"),
    ],
)
def test_how_a_translation_is_written(text, translation, expected):
    assert translate_document(text, "markdown", always(translation)) == expected


@pytest.mark.parametrize("space", [" ", "\N{NO-BREAK SPACE}"])
def test_punctuation_after_a_space_stays_outside_of_emphasis(space):
    translate = always(f"Est-ce vrai{space}?", [(0, 0), (2, 1)])
    assert translate_document("Is it **true**?", "markdown", translate) == f"Est-ce **vrai**{space}?"


def test_a_rule_at_the_beginning_is_no_front_matter():
    text = "---\n\nwelcome to the guide\n\n---\n\nmore text\n"
    assert changed(text, "markdown", str.upper)[0] == text.upper()
    for front in ("---\ntitle: secret\n---\n", "---\n---\n", "+++\na = 1\n\nb = 2\n+++\n"):
        assert changed(f"{front}a", "markdown", str.upper)[0] == f"{front}A"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        # Code within and beside other markup.
        ("See [`a` b](u).", ["See b."]),
        ("x **[`a` b](u)** y `c`.", ["x b y."]),
        ("(`a` b) and [`x`](u), [`y` `z` w](v).", ["(b) and, w."]),
        ("Text [`a`.](u) b (*`c` d*) e", ["Text . b (d) e"]),
        ("*a `b` c `d`* e `f`'s g [h `i`](u) j", ["a c e 's g h j"]),
        ("a (`b` , c) `d` `e`: f `g` (`h`, `i`)", ["a (, c): f (,)"]),
        # Markup within words.
        ("**a***b* c", ["ab c"]),
        # Headings and cells that begin as a list would.
        ("## 1. Text\n\n| 2. a |\n|---|\n| - b |", ["1. Text", "2. a", "- b"]),
        # Addresses, also with characters that could be markup.
        ("See https://x.y/a_b_c&amp;d[e now.", ["See now."]),
        ("https://x.y/a_b_c~d*e and a_b_c@x.y", ["and"]),
        ("to https://x.y/a\\_b?c=1&amp;d=2, x", ["to, x"]),
        ("See [a file](file:///a_b_c) now.\n\n[f]: file:///x", ["See a file now."]),
        ("![A dog](data:image/svg+xml;base64,aa_b_=) Here [is](JavaScript:f(1)).", ["Here is.", "A dog"]),
        ("Go <file:///a_b_c> on, <data:text/plain,x>.\n\n[a b]: <vbscript:x> 'y'", ["Go on,."]),
        # Footnotes.
        ("Text[^src] more.\n\n[^src]: https://example.com/a", ["Text more."]),
        ("Text[^s] more.\n\n[^s]: Word\n[^t_u_]: Two words\n", ["Text more.", "Word", "Two words"]),
        ("A dog[1](#a) and [[2]](u) in [2019](v).", ["A dog1 and in 2019."]),
        # HTML in quotes and lists.
        ("> <p>Hi there</p>\n", ["Hi there"]),
        ('- <div\n  title="One two">\n  Some\n  text</div>\n\n> > <p>a</p>', ["Some text", "a", "One two"]),
        # Markers of alerts, ids of headings, and attributes.
        ("> [!NOTE]\n> Some text\n> here.", ["Some text here."]),
        ("# A title {#a_title_x}\n\nSee {#id} x.", ["A title", "See x."]),
        ("# Dogs\n{: .x }\n\n{: .y }\nWe go.\n{:.z}\n\n1. Cats\n{:toc}", ["Dogs", "We go.", "Cats"]),
        ("A [dog](u){: .x } and ![cat](v){ width=3 } `c`{.py} are *old*{: #z}.", ["A dog and are old.", "cat"]),
        # Labels in code.
        ("- `--port`: the port\n", ["the port"]),
        ("- `-p`, `--port` \u2013 the port\n", ["the port"]),
        ("- `x`, which is big\n", [", which is big"]),
        ("- `x` is big: y\n", ["is big: y"]),
        ("- `x`:\n", []),
        # Formulas, and sums of money, which are not.
        ("Let $x$, $a_i + 1$ and $\\mathrm{softmax}(E h_t)$ be", ["Let, and be"]),
        ("a $\\frac{b_i}{2}$ (eq. $1$)\n\n$$\\sum_i a_i *\\\\* b$$", ["a (eq.)"]),
        ("| a_1 | $b_1$, $c$ |\n|---|---|", ["a_1"]),
        ("cost $100. I have 50$.", ["cost $100. I have 50$."]),
        ("I paid $5,\nhe paid 10$.", ["I paid $5, he paid 10$."]),
        ("R$5 and R$ six, US$ 5 or $HOME/$x", ["R$5 and R$ six, US$ 5 or $HOME/$x"]),
        ("**$5** or **6$**, $7 or 8$.", ["$5 or 6$, $7 or 8$."]),
        ("One $$ and two $$ here", ["One $$ and two $$ here"]),
    ],
)
def test_what_is_read_and_that_everything_else_stays(text, read):
    assert changed(text, "markdown") == (text, read)
