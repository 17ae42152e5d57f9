"""gettext's PO and POT: messages without a translation get one."""

import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ...languages import base_language
from ...model.kept_words import KeptWords
from ..translate.marked_text import KEPT_WORD, Markup, Text, Token
from ..translate.paragraphs import Translated
from .catalogs import Entry, check_language, error_at, read_entries, read_message, unescaped
from .document import Document
from .format_flags import LANGUAGES, Placeholders
from .plural_forms import count_of, is_value, numbers_of, plural_forms_of, translated_text
from .restructured_text import rest_begin, rest_escape, rest_names, rest_references, rest_tokens, rest_written

logger = logging.getLogger(__name__)

_STRING = r'"(?:[^"\\\n]|\\[^\n])*+"'
_LINE = re.compile(
    r"[ \t\f]*+(?:(?P<comment>#[^\n]*+)|(?:(?P<field>msgctxt|msgid_plural|msgid|msgstr(?:\[[0-9]+\])?)[ \t]*+)?"
    rf"(?P<string>{_STRING})[ \t]*+|)(?:\n|\Z)"
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]+|.)")
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPES = {value: f"\\{name}" for name, value in _CONTROLS.items()} | {'"': '\\"', "\\": r"\\"}
# Where Sphinx found a message: in a file, relative to the folder of catalogs, or in the documentation of code: "m.py:
# docstring of a.b:1", of which Babel 2.19, with which sphinx-intl writes, makes "a.b:1 of". `msgmerge
# --add-location=file` takes out numbers of lines.
_SPHINX = re.compile(r"\.rst\b|(?<!\S)\.\./\S*\.txt\b|:docstring of |<autodoc>| of(?= |$)")
_TYPED = {"c", "objc", "gcc-internal", "gfc-internal"}  # languages in which %s is no number
_PAIRS = {"%<": "<", "%>": "<", "%r": "r", "%R": "r", "%{": "{", "%}": "{"}  # of GCC
_APOSTROPHES = re.compile("''")  # one, in a format of Java
_LANGUAGE = re.compile(
    r"^Language:[ \t]*([A-Za-z]+(?:[_-][A-Za-z0-9]+)*)(?:\.[\w-]+)?(?:@(\w+))?", re.MULTILINE | re.IGNORECASE
)
_SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl"}  # modifiers of locales (gettext's manual, "Locale Names")
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
class PoMessage:
    """
    A message. `start` is where the line of its first field starts, `flag_lines` where its lines of flags do. `is_rest`:
    whether it is reStructuredText.
    """

    start: int = 0
    is_rest: bool = False
    fields: dict[str, _Field] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    flag_lines: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_header(self) -> bool:
        return not self.fields["msgid"].text and "msgctxt" not in self.fields

    @property
    def languages(self) -> list[str]:
        """The programming languages whose placeholders its flags declare."""
        found = (re.fullmatch(r"(?!no-|impossible-)(?:possible-)?(.+)-format", flag) for flag in self.flags)
        return [match[1] for match in found if match]

    @property
    def placeholders(self) -> list[Placeholders]:
        return [LANGUAGES[language] for language in self.languages]

    @property
    def can_be_read(self) -> bool:
        """Whether all its placeholders are known."""
        sources = [self.fields[name].text for name in ("msgid", "msgid_plural") if name in self.fields]
        kinds = [LANGUAGES.get(language) for language in self.languages]
        return all(known is not None and known.can_read(source) for known in kinds for source in sources)

    @property
    def forms(self) -> dict[str, _Field]:
        """The fields of its translation."""
        return {name: form for name, form in self.fields.items() if _is_translation(name)}


def read_po(text: str, kept: KeptWords, target: str | None) -> Document:
    """
    Read the messages without a translation; fuzzy and obsolete ones stay as they are. A plural gets all forms of the
    language, see `_plurals_of`. The header gets the language and its plural forms, if it has none and they are known,
    and UTF-8, and is not fuzzy any more. A message stays without a translation if one of its forms lacks placeholders
    that its flags declare, or has others, or if a flag is unknown. One with a doubtful translation becomes fuzzy.

    Raises:
        UserError: the text is not in this format, or in another language than the target.
    """
    messages = list(po_messages(text))
    # One message in reStructuredText makes all of them so, since tools shorten some locations and drop others.
    is_rest = any(message.is_rest for message in messages)
    for message in messages:
        message.is_rest = is_rest
    names_source = _names_source(messages, target)
    forms, has_plurals = plural_forms_of(target), any("msgid_plural" in message.fields for message in messages)
    entries: list[Entry] = []
    owners: list[int] = []  # the index of the message that each entry is of
    names = rest_names(message.fields["msgid"].text for message in messages if message.is_rest)
    for number, message in enumerate(messages):
        if number == 0 and message.is_header:
            header = message.fields["msgstr"]
            entries += _without_fuzzy(text, message)
            entries += _header(text, header, target, forms, has_plurals, names_source)
            if re.search(r"nplurals=[0-9]", header.text) and not names_source:
                forms = header.text
        elif "fuzzy" not in message.flags and not message.is_header and message.can_be_read:
            made = list(_translations(message, forms, kept, names))
            if made and messages[0].is_header:
                header = messages[0].fields["msgstr"]
                check_language(text, header.start, "" if names_source else named_language(header.text), target)
            entries += made
        owners += [number] * (len(entries) - len(owners))
    document = read_entries(text, entries, kept)

    def write(translations: Sequence[Translated]) -> str:
        found = iter(translations)
        doubts = [any([next(found).is_doubtful for _ in range(size)]) for size in document.sizes]
        doubtful = {owner for owner, is_doubtful in zip(owners, doubts, strict=True) if is_doubtful}
        return _finished(document.write(translations), text, messages, set(owners), doubtful)

    return Document(document.paragraphs, write)


def po_messages(text: str) -> Iterator[PoMessage]:
    """The messages of a file, except obsolete ones, which are comments here."""
    found, last, at = PoMessage(), None, 0  # `last` is the field that a string continues
    while at < len(text):
        line = _LINE.match(text, at)
        if line is None:
            raise error_at(text, at, "not a line of a PO file")
        name = line["field"]
        if any(map(_is_translation, found.fields)) and (line["comment"] or name in ("msgctxt", "msgid")):
            yield _checked(found, text, at)
            found = PoMessage()
        if line["comment"]:
            found.is_rest |= line["comment"][1:2] == ":" and _SPHINX.search(line["comment"]) is not None
            if line["comment"][1:2] in (",", "="):
                found.flags += (flag.strip() for flag in line["comment"][2:].split(","))
                found.flag_lines.append((at, line.end()))
            last = None
        elif name is not None:
            if name in found.fields or (name not in ("msgctxt", "msgid") and "msgid" not in found.fields):
                raise error_at(text, at, f"{name} is out of place")
            if not found.fields:
                found.start = at
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


def _checked(found: PoMessage, text: str, end: int) -> PoMessage:
    needed = "msgstr[0]" if "msgid_plural" in found.fields else "msgstr"
    if needed not in found.fields:
        raise error_at(text, end - 1, f"there is no {needed} before the end of this line")
    return found


def _translations(
    found: PoMessage, plural_forms: str | None, kept: KeptWords, names: Collection[str]
) -> Iterator[Entry]:
    """
    Fill the empty translations of a message. If all forms of its plural are empty, it gets as many as the language has.

    Args:
        names: see `rest_tokens`.
    """
    fields = found.fields
    is_java = "java" in found.languages

    def entry(source: _Field, start: int, end: int, before: str = "") -> Entry:
        width = max(map(len, source.strings), default=0) if len(source.strings) > 1 else None
        width = width and max(width, _WIDTH)
        # If a message has {0} or '{', `read_message` reads the apostrophes.
        if is_java and not re.search(r"\{[0-9]|'[{}]", source.text):
            region = read_message(unescaped(source.text, _APOSTROPHES, lambda _: "'"), kept, _java)
        elif found.is_rest:
            region = read_message(rest_tokens(source.text, names), kept, rest_escape, begin=rest_begin)
        else:
            region = read_message(_tokens(source.text, found, kept), kept, str, is_java)

        def write(written: str) -> str:
            written = rest_written(written) if found.is_rest else written
            for placeholders in found.placeholders:
                written = placeholders.in_order(written, source.text)
            return before + _quoted(written, width)

        can_number = all(placeholders.can_number(source.text) for placeholders in found.placeholders)
        return Entry(start, end, write, region, can_number)

    if "msgid_plural" not in fields:
        if not fields["msgstr"].text:
            yield entry(fields["msgid"], fields["msgstr"].start, fields["msgstr"].end)
        return
    forms = list(found.forms.values())
    count, source_of = _plurals_of(plural_forms, found, kept)
    wanted = count if count and not any(form.text for form in forms) else len(forms)
    sources = {index: source_of(index) for index in range(wanted) if index >= len(forms) or not forms[index].text}
    if None in sources.values():
        return
    for index, source in sources.items():
        if index < len(forms):
            yield entry(source, forms[index].start, forms[index].end)
        else:
            yield entry(source, forms[-1].end, forms[-1].end, f"\nmsgstr[{index}] ")
    if wanted < len(forms):
        yield Entry(forms[wanted - 1].end, forms[-1].end)


def _plurals_of(
    declared: str | None, found: PoMessage, kept: KeptWords
) -> tuple[int | None, Callable[[int], _Field | None]]:
    """The number of plural forms, None if unknown, and a function for the source of a form, None if none is right."""
    numbers_of_forms = numbers_of(declared or "")
    fields = {"singular": found.fields["msgid"], "plural": found.fields["msgid_plural"]}
    singular, plural = (_values(source.text, found, kept) for source in fields.values())

    def field_of(index: int) -> _Field | None:
        numbers = numbers_of_forms.get(index, set())
        # Babel 2.19 compares the second form with the plural in every language; in Arabic, it is that for 1.
        if index and numbers == {1} and set(plural) - set(singular):
            return fields["plural"]
        source = translated_text(numbers, singular, plural, not _TYPED.isdisjoint(found.languages))
        return fields[source] if source else None

    return count_of(declared or ""), field_of


def _values(text: str, found: PoMessage, kept: KeptWords) -> list[str]:
    """The placeholders of a text that may be the number: those that its flags declare or, without flags, all."""
    if found.languages:
        return [value for placeholders in found.placeholders for value in placeholders.values(text)]
    return [word for start, end in kept.spans(text) if is_value(word := text[start:end])]


def _tokens(text: str, found: PoMessage, kept: KeptWords) -> Iterator[Token]:
    """A message as text and those placeholders that are not within kept words."""
    matches = [
        match
        for placeholders in found.placeholders
        if placeholders.is_markup and placeholders.arguments(text) is not None
        for match in placeholders.pattern.finditer(text)
        if not match["bare"] and not _is_percentage(match)
    ]
    known, done = deque(kept.spans(text)), 0
    for match in sorted(matches, key=re.Match.start):
        start, end = match.span()
        while known and known[0][1] <= start:
            known.popleft()
        first, last = known[0] if known else (end, end)
        # A placeholder within a kept word is left to that; but "%r%" in "%r%.*s", which begins with one, is no word.
        is_within = first < start or (first == start and (end == last or match["escape"]))
        if start >= done and not is_within:
            yield Text(text[done:start], text[done:start])
            groups = match.groupdict()
            kind = "open" if groups.get("open") else "close" if groups.get("close") else "atom"
            yield Markup(kind, text[start:end], _PAIRS.get(match.group(), KEPT_WORD if kind == "atom" else ""))
            done = end
    yield Text(text[done:], text[done:])


def _is_percentage(match: re.Match[str]) -> bool:
    """
    Whether a placeholder looks like "% c" in "100% clay" or "% a" in "5 % a day". It is left to the model; if the
    translation lacks it, as most will, and the program reads it as a placeholder, nothing right can be written.
    """
    before, after = match.string[: match.start()].rstrip(" "), match.string[match.end() : match.end() + 1]
    is_word = re.fullmatch("% [a-zA-Z]{2,}", match.group()) is not None or after.isalpha()
    return match.group().startswith("% ") and (is_word or before[-1:].isdigit())


def _finished(text: str, source: str, messages: list[PoMessage], read: set[int], doubtful: set[int]) -> str:
    """
    Take out translations with wrong placeholders, and with them all other forms that were empty in `messages`. Mark
    doubtful ones. Log how many messages have no translation, and why.

    Args:
        text: the file with translations.
        source, messages: the file as it was read.
        read, doubtful: the indices of messages that were translated, and of those whose translation is doubtful.
    """
    parts, done = [], 0
    told, untranslated = dict[tuple[str, str], list[int]](), 0
    for number, (before, after) in enumerate(zip(messages, po_messages(text), strict=True)):
        new = {
            name: form for name, form in after.forms.items() if name not in before.forms or not before.forms[name].text
        }
        if not new or before.is_header or "fuzzy" in before.flags:
            continue
        what, why = "left empty", ""
        if not before.can_be_read:
            why = "a flag declares placeholders that are not known"
        elif number not in read:
            why = "a plural form stands for several numbers, and neither text shows which"
        elif any(_is_wrong(form.text, before) for form in new.values()):
            why = "the translation has not the same placeholders or references"
            for form in new.values():
                parts += [text[done : form.start], '""']
                done = form.end
        elif not all(form.text for form in new.values()):
            why = "the model wrote nothing"
        elif number in doubtful:
            what, why = "marked fuzzy", "the translation is doubtful"
            start, end = next(iter(after.flag_lines), (after.start, after.start))
            parts += [text[done:start], f"#, fuzzy{', ' + text[start + 2 : end].lstrip() if end > start else chr(10)}"]
            done = end
        untranslated += 1
        if why:
            told.setdefault((what, why), []).append(before.start)
    for (what, why), starts in sorted(told.items()):
        total = f"{len(starts):,} of {untranslated:,} messages without a translation"
        logger.info(f"{what}, {total}: {why} (first: line {source.count(chr(10), 0, starts[0]) + 1:,})")
    return "".join(parts) + text[done:]


def _is_wrong(written: str, message: PoMessage) -> bool:
    """Whether a form that has a translation has other placeholders, or references of Sphinx, than the message."""
    source, singular = message.fields.get("msgid_plural", message.fields["msgid"]), message.fields["msgid"]
    for placeholders in message.placeholders if written else ():
        wanted = [placeholders.arguments(original.text) for original in (source, singular)]
        found = placeholders.arguments(written)
        if wanted[0] is not None and (found is None or found not in wanted):
            return True
    return bool(written) and message.is_rest and rest_references(written) != rest_references(source.text)


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


def named_language(header: str) -> str:
    """
    The tag of the language that the text of a header names: sr-Latn for sr_RS@latin; other modifiers, of dialects, are
    none.
    """
    named = _LANGUAGE.search(header)
    if not named:
        return ""
    script = _SCRIPTS.get((named[2] or "").lower())
    return f"{re.split('[-_]', named[1])[0]}-{script}" if script else named[1]


def _names_source(messages: Sequence[PoMessage], target: str | None) -> bool:
    """
    Whether a catalog without any translation names English, as templates do: the texts of nearly all programs are
    English, as gettext's manual asks. For another language, it is an empty catalog of that language.
    """
    if target is None or not messages or not messages[0].is_header:
        return False
    is_empty = not any(form.text for message in messages[1:] for form in message.forms.values())
    return is_empty and base_language(named_language(messages[0].fields["msgstr"].text)) == "en" != base_language(
        target
    )


def _without_fuzzy(text: str, header: PoMessage) -> Iterator[Entry]:
    """Take "fuzzy" from the flags of the header, which templates have: Babel skips files with a fuzzy header."""
    for start, end in header.flag_lines:
        others = [flag for flag in map(str.strip, text[start + 2 : end].split(",")) if flag != "fuzzy"]
        line = f"{text[start : start + 2]} {', '.join(others)}\n" if others else ""
        yield Entry(start, end, lambda _, line=line: line)


def _header(
    text: str, header: _Field, target: str | None, forms: str | None, has_plurals: bool, names_source: bool
) -> Iterator[Entry]:
    """Fill in what the header leaves open, or says of the source: a new value in its place, or a line at the end."""
    values = {
        "Language": (target and target.replace("-", "_"), r"[^\\]*" if names_source else r"(?=\\n)"),
        "Content-Type": ("text/plain; charset=UTF-8", r"[^\\]*charset=(?!UTF-8\b)[\w-]*"),
        "Plural-Forms": (forms, r"[^\\]*" if names_source else r"(?:nplurals=INTEGER[^\\]*)?(?=\\n)"),
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


def _java(character: str) -> str:
    return "''" if character == "'" else character


def _plain(escape: str) -> str:
    if escape[0] == "x" and len(escape) > 1:
        return chr(int(escape[1:], 16) % 256)
    return chr(int(escape, 8)) if escape[0] in "01234567" else _CONTROLS.get(escape, escape)
