"""gettext's PO and POT: messages without a translation get one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...languages import base_language
from ..translate.kept_words import KeptWords
from ..translate.marked_text import Markup, Text, Token
from .catalogs import CONVERSION, Entry, error_at, message, read_entries
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
# What the flags of messages declare as placeholders; "%" alone is wrong in C. An argument has a number or a name.
_PRINTF = re.compile(rf"%%|%(?P<argument>[0-9]+\$|\([^()]+\))?{CONVERSION}|%")
_QT = re.compile(r"%L?(?P<argument>[0-9]{1,2}|n)")
_PLACEHOLDERS = {
    **dict.fromkeys(("c-format", "objc-format", "python-format", "php-format", "perl-format"), _PRINTF),
    **dict.fromkeys(("qt-format", "qt-plural-format", "kde-format"), _QT),
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

    @property
    def placeholders(self) -> re.Pattern[str] | None:
        """Those that its flags declare."""
        return next((pattern for flag, pattern in _PLACEHOLDERS.items() if flag in self.flags), None)

    @property
    def forms(self) -> dict[str, _Field]:
        """The fields of its translation."""
        return {name: each for name, each in self.fields.items() if _is_translation(name)}


def read_po(text: str, kept: KeptWords, target: str | None) -> Document:
    """
    Read the messages without a translation; fuzzy and obsolete ones stay as they are. Of a message with a plural, the
    first form gets the translation of the singular if the language has several forms, and all others that of the
    plural. The header gets the language and its plural forms, if it has none and they are known, and UTF-8. A message
    stays without a translation if one of its forms lacks placeholders that its flags declare, or has others.

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
    document = read_entries(text, entries, kept)
    return Document(document.paragraphs, lambda found: _without_wrong_forms(document.write(found), messages))


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
    fields = found.fields

    def entry(source: _Field, start: int, end: int, before: str = "") -> Entry:
        width = max(map(len, source.strings), default=0) if len(source.strings) > 1 else None
        width = width and max(width, _WIDTH)
        region = message(_tokens(source.text, found.placeholders, kept), kept, str)
        can_number = "python-format" not in found.flags
        return Entry(start, end, lambda written: before + _quoted(written, width), region, can_number)

    singular, plural = fields["msgid"], fields.get("msgid_plural")
    if plural is None:
        if not fields["msgstr"].text:
            yield entry(singular, fields["msgstr"].start, fields["msgstr"].end)
        return
    forms = list(found.forms.values())
    count = re.search(r"nplurals=([0-9]{1,2})", plural_forms or "")
    wanted = int(count[1]) if count and not any(form.text for form in forms) else len(forms)
    for index, form in enumerate(forms[:wanted]):
        if not form.text:
            source = singular if index == 0 and wanted > 1 else plural
            yield entry(source, form.start, form.end)
    for index in range(len(forms), wanted):
        yield entry(plural, forms[-1].end, forms[-1].end, f"\nmsgstr[{index}] ")
    if wanted < len(forms):
        yield Entry(forms[wanted - 1].end, forms[-1].end)


def _tokens(text: str, placeholders: re.Pattern[str] | None, kept: KeptWords) -> Iterator[Token]:
    """A message as text and those placeholders that are not among the kept words."""
    spans, done = kept.spans(text), 0
    for match in placeholders.finditer(text) if placeholders else ():
        start, end = match.span()
        if match.group() != "%" and not any(first < end and start < last for first, last in spans):
            yield Text(text[done:start], text[done:start])
            yield Markup("atom", match.group())
            done = end
    yield Text(text[done:], text[done:])


def _without_wrong_forms(text: str, messages: list[_Message]) -> str:
    """Take out translations with wrong placeholders, and with them all other forms that were empty in `messages`."""
    parts, done = [], 0
    for before, after in zip(messages, _messages(text), strict=True):
        new = {
            name: each for name, each in after.forms.items() if name not in before.forms or not before.forms[name].text
        }
        if not any(_is_wrong(name, each.text, after) for name, each in new.items()):
            continue
        for each in new.values():
            parts += [text[done : each.start], '""']
            done = each.end
    return "".join(parts) + text[done:]


def _is_wrong(form: str, written: str, found: _Message) -> bool:
    """Whether a form that has a translation has other placeholders than the message."""
    pattern, singular = found.placeholders, found.fields["msgid"]
    sources = [found.fields.get("msgid_plural", singular), *([singular] if form == "msgstr[0]" else [])]
    if pattern is None or not written:
        return False
    return all(_arguments(written, pattern) != _arguments(source.text, pattern) for source in sources)


def _arguments(text: str, placeholders: re.Pattern[str]) -> list[str]:
    """The placeholders of a text, each with its number or name."""
    found = [match for match in placeholders.finditer(text) if match.group() != "%%"]
    return sorted(
        each.group() if each["argument"] else f"%{number}${each.group()[1:]}"
        for number, each in enumerate(found, start=1)
    )


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
