"""Dialects of Markdown: blocks and spans beyond CommonMark stay, and the text in them is translated."""

import random
import re
from collections import Counter
from html import unescape

import pytest
from lxml import html
from markdown import markdown
from markdown_it import MarkdownIt
from mdit_py_plugins.admon import admon_plugin
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.attrs import attrs_block_plugin, attrs_plugin
from mdit_py_plugins.container import container_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.subscript import sub_plugin
from mdit_py_plugins.superscript import superscript_plugin
from stand_ins import changed

from modeling_scratch.errors import UserError

# A page of each dialect, whose text is in lower case and whose markup says "Kept" or is in capitals where it could be
# taken for text; and the paragraphs that are read from it.
PAGES = {
    "containers": (
        """---
title: Kept
---
::: TIP a short title {OPEN}
the cat sleeps.
:::

:::NOTE[a title in brackets]{.KEPT}
- one dog
:::
two dogs run.
:::: WARNING
::: {.KEPT #kept title="a child"}
it runs
on.
:::
::::

:::{ADMONITION} a house
:class: Kept

> :::TIP
> a quote
> :::

::YOUTUBE[Kept]{#kept}

/// TIP | a third title
    open: Kept

we go.
///

[[TOC]]

<<< @/KEPT.js{1,2}

# a heading <Badge text="Kept" type="KEPT" /> {#kept}

{{ $frontmatter.KEPT }} says so.
""",
        "a short title|the cat sleeps.|a title in brackets|one dog|two dogs run.|a child|it runs on.|a house|a quote|"
        "a third title|we go.|a heading|says so.",
    ),
    "hugo and jekyll": (
        """{{% ALERT title="the cat" color="KEPT" %}}
the cat sleeps.
{{% /ALERT %}}

we see {{< ICON "kept" >}} two dogs and {{</* KEPT */>}}. a [house]({{< ref "/Kept" >}}) is big.

{{< FIGURE
  src="KEPT.png"
  alt="a big house" >}}

- one
  {{< KEPT >}}
- two

{{< HIGHLIGHT go >}}
kept := code
{{< /HIGHLIGHT >}}

{{< highlight go >}}
Kept := CODE

# KEPT
{{< /highlight >}}

{% include KEPT.html caption="a child runs" %}
{% raw %}
{{ KEPT }} *KEPT*
{% endraw %}

the {{ site.KEPT | upcase }} [sleeps]({{ site.KEPT }}{% link KEPT.md %}) here{% if KEPT %} or there{% endif %}.
{: .KEPT }

a list
{: .KEPT #KEPT }

{:KEPT}
1. one dog
{:toc}

![a dog]({{ site.KEPT }}/KEPT.png){: .KEPT }
""".replace("{{< HIGHLIGHT go >}}\nkept := code\n{{< /HIGHLIGHT >}}\n\n", ""),
        "the cat|the cat sleeps.|we see two dogs and. a house is big.|a big house|one|two|a child runs|"
        "the sleeps here or there.|a list|one dog|a dog",
    ),
    "mkdocs": (
        """[TOC]

!!! NOTE "a title"
    the cat sleeps.

    - one dog
        - two dogs

            run

                Kept code

    ```
    Kept
    ```
then we go.

??? KEPT INLINE END
    a body

    !!! TIP ""
        within it

???+ KEPT "more"

    text

=== "one tab"

    the first
    text

=== "two tabs"

    1. the second

        text

press ++CTRL+ALT+KEPT++ for :KEPT-icon:{ .KEPT } and **strong**{ .KEPT } words, ==marked== and H~2~O, x^2^.

[a button](KEPT.md){ .KEPT }

a paragraph
{ .KEPT }

## a heading { #KEPT data-x="KEPT" }

the HTML is here.[^kept]

*[HTML]: a language for pages
*[CSS]: a language for style

[^kept]: a note

    with two paragraphs.

[^KEPT]:
    one more note

apple
pear
:   a fruit
    of a tree

    - a list

:   a company

orange

:   a colour

--8<-- "KEPT.md"

<div class="KEPT" markdown>
- a card
</div>
""",
        "a title|the cat sleeps.|one dog|two dogs|run|then we go.|a body|within it|more|text|one tab|the first text|"
        "two tabs|the second|text|press for and strong words, marked and h2o, x2.|a button|a paragraph|a heading|"
        "the html is here.|a language for pages|a language for style|a note|with two paragraphs.|one more note|apple|"
        "pear|a fruit of a tree|a list|a company|orange|a colour|a card",
    ),
    "obsidian": (
        """> [!TIP] a short title
> the cat
> sleeps.

> [!KEPT|WIDE]-
> two dogs
> > [!NOTE]+ within
> > one dog

see [[KEPT page]] and [[Kept#KEPT|the page]] now, ==a *big* mark==. ![[KEPT.png|300]] it runs. ^Kept-id

%% KEPT
KEPT %%

| a | b [[KEPT\\|the label]] |
|---|---|
| %%KEPT%% c | d |

- [ ] a task
- [x] a [[KEPT]] task
""",
        "a short title|the cat sleeps.|two dogs|within|one dog|see and the page now, a big mark. it runs.|a|"
        "b the label|c|d|a task|a task",
    ),
    "mdx": (
        """import Kept from 'KEPT';
import {
  KEPT,
} from "Kept";

export const KEPT = {
  title: "Kept",
};

# a heading {/* KEPT */}

<Tabs
  defaultValue="KEPT"
  values={[
    {label: 'KEPT', value: "KEPT"},
  ]}>
  <TabItem value="KEPT" label="an apple">
    the apple *is* red.

    {/* KEPT */}
  </TabItem>
  <TabItem value="KEPT">one pear</TabItem>
</Tabs>

the <Kept colour={a ? "KEPT" : {KEPT}}>green</Kept> cat has {props.KEPT.length} legs<Kept.Note />.

{KEPT.map((each) => (
  <li key={each}>{each}</li>
))}

<>
we run
</>
""",
        "a heading|the apple is red.|one pear|the green cat has legs.|we run|an apple",
    ),
    "math and footnotes": (
        """let \\(z\\) and \\\\( \\alpha KEPT \\\\) be, or $K_z$, as in \\[ K = 2 \\].

$$
KEPT
- *KEPT*
$$

\\[
KEPT
\\]

\\begin{align}
KEPT

KEPT
\\end{align}

it costs $5 or 6$, see \\[the book\\].^[a small note] and more [@KEPT99, p. 5].

$$ K = 3 $$

<!-- KEPT
KEPT -->

so {sub}`KEPT` is a role<!-- KEPT -->.
""",
        "let and be, or, as in.|it costs $5 or 6$, see [the book]. and more.|so is a role.|a small note",
    ),
}


def tags(page: str) -> list:
    """The elements of a page, as Python-Markdown reads it."""
    extensions = ["abbr", "admonition", "attr_list", "def_list", "footnotes", "md_in_html", "tables"]
    extensions += [f"pymdownx.{name}" for name in ("arithmatex", "blocks.admonition", "caret", "details", "keys")]
    extensions += [f"pymdownx.{name}" for name in ("mark", "tabbed", "tasklist", "tilde")]
    tree = html.fromstring(f"<main>{markdown(page, extensions=extensions)}</main>")
    readable = ("alt", "label", "title")
    return [(node.tag, sorted(item for item in node.items() if item[0] not in readable)) for node in tree.iter()]


def tokens(page: str) -> list:
    """The blocks and spans of a page, as markdown-it reads it with its plugins."""
    parser = MarkdownIt("commonmark", {"alerts": True}).enable(["table", "strikethrough"])
    for plugin in (admon_plugin, amsmath_plugin, attrs_plugin, attrs_block_plugin, deflist_plugin, dollarmath_plugin):
        parser.use(plugin)
    parser.use(footnote_plugin).use(sub_plugin).use(superscript_plugin)
    parser.use(container_plugin, "any", validate=lambda *_: True)
    found = [token for block in parser.parse(page) for token in (block, *(block.children or ()))]
    return [
        (token.type, token.markup, sorted(item for item in token.attrs.items() if item[0] not in ("alt", "title")))
        for token in found
        if token.type not in ("text", "text_special", "softbreak", "entity")
    ]


def longer(text: str) -> str:
    """A word after each word."""
    return re.sub(r"(\S+)", r"\1 more", text)


@pytest.mark.parametrize("name", PAGES)
def test_all_text_is_translated_and_everything_else_stays(name):
    page, read = PAGES[name]
    assert changed(page, "markdown")[0] == page
    found, paragraphs = changed(page, "markdown", str.upper)
    assert found.lower() == page.lower()
    assert found.count("Kept") == page.count("Kept")
    assert sorted(paragraph.lower() for paragraph in paragraphs) == sorted(read.split("|"))


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("change", [str.upper, longer])
@pytest.mark.parametrize("structure", [tags, tokens])
def test_other_readers_find_the_same_structure_in_the_translation(name, change, structure):
    page, _ = PAGES[name]
    assert structure(changed(page, "markdown", change)[0]) == structure(page)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_whatever_stands_beside_what(seed):
    choose = random.Random(seed)
    lines = [line for page, _ in PAGES.values() for line in page.split("\n") if "<!--" not in line]
    for _ in range(50):
        starts = choose.choices(["", "  ", "    ", "> ", "- "], [6, 1, 1, 1, 1], k=12)
        page = "\n".join(start + choose.choice(lines) for start in starts)
        found = unescape(changed(page, "markdown", str.upper)[0])
        assert Counter(re.findall(r"\w", found.lower())) == Counter(re.findall(r"\w", page.lower())), page


@pytest.mark.parametrize(
    ("text", "read"),
    [
        # Not markup, or not of these kinds.
        ("a == b and c == d, if a==b or (a)==c: **==d** e==", ["a == b and c == d, if a==b or (a)==c: ==d e=="]),
        ("**~1 cat** and **~2 dogs**", ["~1 cat and ~2 dogs"]),
        ("~5 and ~6, a ^ b ^ c, 12:30:45", ["~5 and ~6, a ^ b ^ c, 12:30:45"]),
        ("see \\[one\\] and \\(xy\\)", ["see [one] and"]),
        ("import duties from here.", ["import duties from here."]),
        ("export functions are small.", ["export functions are small."]),
        ("[!one](two) here", ["!one here"]),
        ("one\ntwo === three", ["one two === three"]),
        ("!!! how nice !!!", ["!!! how nice !!!"]),
        ("C++ and D++ {", ["C++ and D++ {"]),
        ("```\n::: a\n!!! b\n{{ c }}\n```\n\n    ::: d\n", []),
        ("<DIV>\n<P>one\n</DIV>", ["one"]),
        # What a template has within it.
        ("{{ a | b * c }} one *two* {% if d * e %}", ["one two"]),
        ('![one]({{ a }}/b.png "two") [three][r]\n\n[r]: {{ site.a }}/b', ["three", "one", "two"]),
        # Attributes, and expressions in them.
        ('<Aa title={t("one two")} label="three">\nfour\n</Aa>', ["four", "three"]),
        ("**one**{ .a } [two]{.b} `c`{.d}", ["one two"]),
        # Without MDX, indented text is code.
        ("<Aa>\n    one\n</Aa>", []),
        ("export const a = 1\n\n<Aa>\n    one\n</Aa>", ["one"]),
        # Tabs of VitePress, definitions of Pandoc; but not underlined headings.
        (":::tabs\n== one\ntwo\n== three\nfour\n:::", ["one", "two", "three", "four"]),
        ("one\n~ two\n~ three\n", ["one", "two", "three"]),
        ("one\n==\n", ["one"]),
        # Lines of a quote.
        ("> one\n::: a\ntwo\n:::", ["one", "two"]),
        ('> !!! a "one"\n>     two\n>\n>     three\n> four\n', ["one", "two", "three", "four"]),
        ("> {{< a\n> b >}}\n> one", ["one"]),
    ],
)
def test_what_is_read_and_that_everything_else_stays(text, read):
    assert changed(text, "markdown") == (text, read)


def test_blocks_may_be_nested_up_to_a_limit():
    page = "".join(f"{'  ' * depth}- one\n" for depth in range(24)) + "\ntwo\n"
    assert changed(page, "markdown", str.upper)[0] == page.upper()
    for page in ("> " * 1000 + "one", "".join(f"{'    ' * depth}!!! a\n" for depth in range(60))):
        with pytest.raises(UserError, match=r"^line \d+: .* nested more than 50 deep$"):
            changed(f"---\na: b\n---\n{page}", "markdown")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("See [small\ntext]{.smallcaps} now", ["See small text now"]),
        ("See [small text]{.x\nkey=y} now", ["See small text now"]),
        ("See [a [link](x) in\nit]{.x} now", ["See a link in it now"]),
        (
            "> See [small\n> text]{.x} and *an\n> emphasis* and [a\n> link](x) now",
            ["See small text and an emphasis and a link now"],
        ),
        ("See []{#anchor}the page[@doe, p. 3;\n@roe].", ["See the page."]),
        ("A cat.^[A note\nthat runs on.]", ["A cat.", "A note that runs on."]),
        ("![A red\ncat](x.png){width=3\nheight=2}", ["A red cat"]),
    ],
)
def test_spans_of_pandoc_may_go_over_the_end_of_a_line(text, read):
    found, paragraphs = changed(text, "markdown")
    assert (" ".join(found.split()), paragraphs) == (" ".join(text.split()), read)
