"""Pandoc's tables: each cell is read, and the table is laid out again. Pandoc 3.9 reads all of these as they say."""

import re

import pytest
from stand_ins import changed

SIMPLE = """  Right     Left     Centre     Default
-------     ------ ----------   -------
     12     12        12            12
      1     a *cat*    1             1

Table:  A caption
"""
SIMPLE_TRANSLATED = """ RIGHT++ LEFT++        CENTRE++  DEFAULT++
-------- ------------ ---------- ---------
    12++ 12++            12++    12++
     1++ A++ *CAT++*     1++     1++

Table:  A++ CAPTION++
"""
HEADERLESS = """------- ------
    low a cat
   high dogs
------- ------
"""
HEADERLESS_TRANSLATED = """------- ----------
  LOW++ A++ CAT++
 HIGH++ DOGS++
------- ----------
"""
SEVERAL_LINES = """> ---------------------------------
>    Old     Default       Right
>   Names                 column
> --------- --------- ----------
>   low     A cat           12.0
>           sleeps.
>
>   high    `code`             5
> ---------------------------------
>
> Text
"""
SEVERAL_LINES_TRANSLATED = """> --------------------------------
>   OLD++    DEFAULT++     RIGHT++
>  NAMES++                COLUMN++
> --------- ----------- ----------
>   LOW++    A++ CAT++      12.0++
>            SLEEPS++.
>
>  HIGH++     `code`           5++
> --------------------------------
>
> TEXT++
"""
WITHOUT_HEADER = """-   Item

    -------- ---------
    low      A cat
             sleeps.

    high     A dog
    -------- ---------
"""
WITHOUT_HEADER_TRANSLATED = """-   ITEM++

    -------- ----------
    LOW++    A++ CAT++
             SLEEPS++.

    HIGH++   A++ DOG++
    -------- ----------
"""
GRID = """: A caption

+------+----------+
| Name | Meaning  |
+:=====+=========:+
| low  | - a cat  |
|      | - a dog  |
+------+----------+
| high | One.     |
|      |          |
|      | Two.     |
+------+----------+
"""
GRID_TRANSLATED = """: A++ CAPTION++

+--------+-------------+
| NAME++ | MEANING++   |
+:=======+============:+
| LOW++  | - A++ CAT++ |
|        | - A++ DOG++ |
+--------+-------------+
| HIGH++ | ONE++.      |
|        |             |
|        | TWO++.      |
+--------+-------------+
"""
WIDE_CHARACTERS = """名前   Meaning
------ --------
猫猫   a cat
"""
WIDE_CHARACTERS_TRANSLATED = """名前++  MEANING++
------- ----------
猫猫++  A++ CAT++
"""


def longer(text: str) -> str:
    return re.sub(r"\w+(?:\.\w+)?", lambda word: f"{word[0].upper()}++", text)


CELLS = {
    "simple": (SIMPLE, ["Right", "Left", "Centre", "Default", *["12"] * 4, "1", "a cat", "1", "1", "A caption"]),
    "headerless": (HEADERLESS, ["low", "a cat", "high", "dogs"]),
    "of several lines, in a quote": (
        SEVERAL_LINES,
        ["Old Names", "Default", "Right column", "low", "A cat sleeps.", "12.0", "high", "5", "Text"],
    ),
    "of several lines without header, in a list": (WITHOUT_HEADER, ["Item", "low", "A cat sleeps.", "high", "A dog"]),
    "grid": (GRID, ["A caption", "Name", "Meaning", "low", "a cat", "a dog", "high", "One.", "Two."]),
    "wide characters": (WIDE_CHARACTERS, ["名前", "Meaning", "猫猫", "a cat"]),
}


@pytest.mark.parametrize(("table", "read"), CELLS.values(), ids=CELLS)
def test_each_cell_is_read(table, read):
    assert changed(table, "markdown") == (table, read)


TRANSLATIONS = [
    (SIMPLE, SIMPLE_TRANSLATED),
    (HEADERLESS, HEADERLESS_TRANSLATED),
    (SEVERAL_LINES, SEVERAL_LINES_TRANSLATED),
    (WITHOUT_HEADER, WITHOUT_HEADER_TRANSLATED),
    (GRID, GRID_TRANSLATED),
    (WIDE_CHARACTERS, WIDE_CHARACTERS_TRANSLATED),
]


@pytest.mark.parametrize(("table", "translated"), TRANSLATIONS, ids=CELLS)
def test_columns_are_as_wide_as_the_translation_and_aligned_as_before(table, translated):
    assert changed(table, "markdown", longer)[0] == translated


def test_rows_may_have_only_their_first_cell():
    text = "Name   Role\n------ ----\nAnna\nBen\nCarl\nDora   dog\n"
    assert changed(text, "markdown") == (text, ["Name", "Role", "Anna", "Ben", "Carl", "Dora", "dog"])


def test_references_in_cells_are_those_of_the_document():
    text = "Name     Meaning\n-------- ---------\n[low][r] a \\* b\n\n[r]: http://x.y\n"
    assert changed(text, "markdown") == (text, ["Name", "Meaning", "low", "a * b"])


def test_a_grid_with_a_cell_over_several_columns_stays():
    grid = "+---+---+\n| a cat |\n+---+---+\n| b | c |\n+---+---+\n"
    assert changed(f"A cat.\n\n{grid}\nA dog.\n", "markdown", str.upper)[0] == f"A CAT.\n\n{grid}\nA DOG.\n"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("A cat sleeps\n--- ---\nA dog.\n", ["A cat sleeps", "A dog."]),  # a word over the edge of a column
        ("one two\n--- ---\nred dogs and\nmore here\n", ["one two", "red dogs and more here"]),  # a table in Pandoc
        ("one\n--- ---\nred\n", ["one", "red"]),
        ("-- --\n\nA cat\n", ["A cat"]),
        ("A dog.\n\n---\nA cat\n---\n", ["A dog.", "A cat"]),
        ("A cat\n-----\nsleeps\n", ["A cat", "sleeps"]),
        ("+---+\n\n| A cat\n", ["| A cat"]),
        ("Table: a piece of furniture.\n", ["Table: a piece of furniture."]),
    ],
)
def test_other_lines_of_dashes_are_no_tables(text, read):
    assert changed(text, "markdown") == (text, read)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("- Name   Role\n  ------ -----\n  Anna   dog\n- Next\n", ["Name Role", "Anna dog", "Next"]),
        ("1. Name  Role\n   ----- -----\n   Anna  dog\n", ["Name Role", "Anna dog"]),
        ("# Name  Role\n  ----- -----\n  Anna  dog\n", ["Name Role", "Anna dog"]),
        ("> Name  Role\n  ----- -----\n  Anna  dog\n", ["Name Role", "Anna dog"]),
    ],
)
def test_a_list_heading_or_quote_is_not_the_header_of_a_table(text, read):
    assert changed(text, "markdown")[1] == read


def test_a_table_of_far_more_cells_than_characters_stays():
    """Each of its short lines has as many cells as the longest: 8 KB could have a million."""
    table = f"aa{'  aa' * 999}\n--{'  --' * 999}\n" + "a\n" * 99
    assert changed(f"A cat.\n\n{table}\nA dog.\n", "markdown", str.upper)[0] == f"A CAT.\n\n{table}\nA DOG.\n"


def test_lines_before_the_closing_rule_stay():
    table = SEVERAL_LINES.replace("5\n> ---", "5\n>\n> ---")
    translated = SEVERAL_LINES_TRANSLATED.replace("5++\n> ---", "5++\n>\n> ---")
    assert (table, translated) != (SEVERAL_LINES, SEVERAL_LINES_TRANSLATED)
    assert changed(table, "markdown", longer)[0] == translated
