"""Plain text: each line is a paragraph."""

from ..paragraphs import TranslateParagraphs


def translate_plain(text: str, translate: TranslateParagraphs) -> str:
    """Translate each line of a text; line breaks of all kinds, and white space around lines, stay."""
    lines = text.splitlines(keepends=True)
    places = [place for place, line in enumerate(lines) if line.strip()]
    for place, found in zip(places, translate([lines[place].strip() for place in places]), strict=True):
        before, _, after = lines[place].partition(lines[place].strip())
        lines[place] = before + found.text + after
    return "".join(lines)
