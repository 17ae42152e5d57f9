"""Markdown for model cards: escaped text, tables, links."""

import re
from collections.abc import Iterable

_MARKUP = re.compile(r"[\\`*_\[\]{}<>~|$&]")


def escape(text: str) -> str:
    """Text for one cell of a Markdown table, with anything that could be markup as character references."""
    text = _MARKUP.sub(lambda match: f"&#{ord(match[0])};", text.strip())
    text = re.sub(r"\r\n?|[\n\u2028\u2029]", "<br>", text)
    return "".join(letter if letter.isprintable() else " " for letter in text)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *rows])


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def hub_link(name: str) -> str:
    return f"[{name}](https://huggingface.co/{name})"
