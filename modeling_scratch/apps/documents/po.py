"""gettext's PO and POT: messages without a translation get one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...languages import base_language
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Text
from .catalogs import Entry, error_at, message, read_entries
from .document import Document

_STRING = r'"(?:[^"\\\n]|\\[^\n])*+"'
_LINE = re.compile(
    r"[ \t\f]*+(?:(?P<comment>#[^\n]*+)|(?:(?P<field>msgctxt|msgid_plural|msgid|msgstr(?:\[[0-9]+\])?)[ \t]*+)?"
    rf"(?P<string>{_STRING})[ \t]*+|)(?:\n|\Z)"
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]+|.)")
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPES = {value: f"\\{name}" for name, value in _CONTROLS.items()} | {'"': '\\"', "\\": r"\\"}
# Plural forms by language, as gettext's msginit writes them.
_SLAVIC = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
_PLURALS = {
    "nplurals=1; plural=0;": "id ja ko ms th vi zh",
    "nplurals=2; plural=(n != 1);": "af bg ca da de el en eo es et eu fi fo gl he hu it nb nl nn no pt sq sv tr",
    "nplurals=2; plural=(n > 1);": "fr pt_BR",
    f"nplurals=3; plural=({_SLAVIC});": "be bs hr ru sr uk",
    "nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;": "cs sk",
    f"nplurals=3; plural=({_SLAVIC.replace('n%10==1 && n%100!=11', 'n==1')});": "pl",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);": "lt",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);": "lv",
    "nplurals=3; plural=n==1 ? 0 : (n==0 || (n%100 > 0 && n%100 < 20)) ? 1 : 2;": "ro",
    "nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;": "ga",
    "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);": "sl",
    "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5);": "ar",
}
_WIDTH = 77  # of a line without its quotation marks, as gettext's tools write it


@dataclass
class _Field:
    """The strings of a field: where they start and end, and each without its quotation marks."""

    start: int
    end: int
    strings: list[str]

    @property
    def text(self) -> str:
        return _ESCAPE.sub(lambda match: _plain(match[1]), "".join(self.strings))


@dataclass
class _Message:
    fields: dict[str, _Field] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)

    @property
    def is_header(self) -> bool:
        return not self.fields["msgid"].text and "msgctxt" not in self.fields


def read_po(text: str, kept: KeptWords, target: str | None) -> Document:
    """
    Read the messages without a translation; fuzzy and obsolete ones stay as they are. Of a message with a plural, the
    first form gets the translation of the singular if the language has several forms, and all others that of the
    plural. The header gets the language and its plural forms, if it has none and they are known, and UTF-8.

    Raises:
        UserError: the text is not in this format.
    """
    messages = list(_messages(text))
    forms, has_plurals = _plural_forms(target), any("msgid_plural" in each.fields for each in messages)
    entries: list[Entry] = []
    for number, each in enumerate(messages):
        if number == 0 and each.is_header:
            header = each.fields["msgstr"]
            entries += _header(text, header, target, forms, has_plurals)
            if re.search(r"nplurals=[0-9]", header.text):
                forms = header.text
        elif "fuzzy" not in each.flags and not each.is_header:
            entries += _translations(each, forms, kept)
    return read_entries(text, entries, kept)


def _messages(text: str) -> Iterator[_Message]:
    """The messages of a file, except obsolete ones, which are comments here."""
    found, last, at = _Message(), None, 0  # `last` is the field that a string continues
    while at < len(text):
        line = _LINE.match(text, at)
        if line is None:
            raise error_at(text, at, "not a line of a PO file")
        name = line["field"]
        if any(map(_is_translation, found.fields)) and (line["comment"] or name in ("msgctxt", "msgid")):
            yield _checked(found, text, at)
            found = _Message()
        if line["comment"]:
            found.flags |= (
                {flag.strip() for flag in line["comment"][2:].split(",")} if line["comment"][1:2] == "," else set()
            )
            last = None
        elif name is not None:
            if name in found.fields or (name not in ("msgctxt", "msgid") and "msgid" not in found.fields):
                raise error_at(text, at, f"{name} is out of place")
            last = found.fields[name] = _Field(line.start("string"), line.end("string"), [line["string"][1:-1]])
        elif line["string"] and last is None:
            raise error_at(text, at, "a string that belongs to nothing")
        elif line["string"]:
            last.strings.append(line["string"][1:-1])
            last.end = line.end("string")
        at = line.end()
    if found.fields:
        yield _checked(found, text, at)


def _is_translation(name: str) -> bool:
    return name.startswith("msgstr")


def _checked(found: _Message, text: str, end: int) -> _Message:
    needed = "msgstr[0]" if "msgid_plural" in found.fields else "msgstr"
    if needed not in found.fields:
        raise error_at(text, end - 1, f"there is no {needed} before the end of this line")
    return found


def _translations(found: _Message, plural_forms: str | None, kept: KeptWords) -> Iterator[Entry]:
    """
    Fill the empty translations of a message. If all forms of its plural are empty, it gets as many as the language has.
    """
    fields, can_number = found.fields, "python-format" not in found.flags
    singular, plural = fields["msgid"], fields.get("msgid_plural")
    if plural is None:
        if not fields["msgstr"].text:
            yield _entry(singular, fields["msgstr"].start, fields["msgstr"].end, kept, can_number)
        return
    forms = [each for name, each in fields.items() if _is_translation(name)]
    count = re.search(r"nplurals=([0-9]{1,2})", plural_forms or "")
    wanted = int(count[1]) if count and not any(form.text for form in forms) else len(forms)
    for index, form in enumerate(forms[:wanted]):
        if not form.text:
            source = singular if index == 0 and wanted > 1 else plural
            yield _entry(source, form.start, form.end, kept, can_number)
    for index in range(len(forms), wanted):
        yield _entry(plural, forms[-1].end, forms[-1].end, kept, can_number, f"\nmsgstr[{index}] ")
    if wanted < len(forms):
        yield Entry(forms[wanted - 1].end, forms[-1].end)


def _entry(source: _Field, start: int, end: int, kept: KeptWords, can_number: bool, before: str = "") -> Entry:
    plain = source.text
    width = max(map(len, source.strings), default=0) if len(source.strings) > 1 else None
    region = message([Text(plain, plain)], kept, str)
    width = width and max(width, _WIDTH)
    return Entry(start, end, lambda written: before + _quoted(written, width), region, can_number)


def _quoted(text: str, width: int | None) -> str:
    """
    A string, or several on lines of their own.

    Args:
        width: of these lines; None: one string for the whole text.
    """
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    if width is None:
        return f'"{escaped}"'
    lines = [""]
    for word in re.findall(r"(?:[^\s\\]|\\[^n])*+(?:\\n|\s++|\Z)", escaped):
        if lines[-1] and (lines[-1].endswith("\\n") or len(lines[-1]) + len(word.rstrip()) > width):
            lines.append("")
        lines[-1] += word
    return "\n".join(f'"{line}"' for line in ["", *filter(None, lines)])


def _header(text: str, header: _Field, target: str | None, forms: str | None, has_plurals: bool) -> Iterator[Entry]:
    """Set what the header leaves open: the place of a value in it, or a line after it."""
    values = {
        "Language": (target and target.replace("-", "_"), r"(?=\\n)"),
        "Content-Type": ("text/plain; charset=UTF-8", r"[^\\]*charset=(?!UTF-8\b)[\w-]*"),
        "Plural-Forms": (forms, r"(?:nplurals=INTEGER[^\\]*)?(?=\\n)"),
    }
    found: list[Entry] = []
    added = ""
    for name, (value, unset) in values.items():
        raw = text[header.start : header.end]
        if value and (place := re.search(rf"(?:\"|\\n){name}:[ \t]*({unset})", raw, re.IGNORECASE)):
            start, end = place.span(1)
            space = "" if raw[start - 1].isspace() else " "
            found.append(Entry(header.start + start, header.start + end, lambda _, value=space + value: value))
        elif value and not re.search(rf"(?:\"|\\n){name}:", raw) and (has_plurals or name != "Plural-Forms"):
            added += f'\n"{name}: {value}\\n"'
    yield from sorted(found, key=lambda entry: entry.start)
    if added:
        yield Entry(header.end, header.end, lambda _: added)


def _plural_forms(target: str | None) -> str | None:
    """The plural forms of a language, as the header declares them; None: unknown."""
    tag = (target or "").replace("-", "_")
    known = {language: forms for forms, languages in _PLURALS.items() for language in languages.split()}
    return known.get(tag) or known.get(base_language(tag))


def _plain(escape: str) -> str:
    if escape[0] == "x" and len(escape) > 1:
        return chr(int(escape[1:], 16) % 256)
    return chr(int(escape, 8)) if escape[0] in "01234567" else _CONTROLS.get(escape, escape)
