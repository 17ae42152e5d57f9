"""DOCX: translates the text of paragraphs; everything else in the archive stays as it is."""

import re
from collections.abc import Callable, Iterator
from functools import partial

from ...errors import UserError
from ...model.kept_words import KeptWords
from ...model.text import is_translatable
from ..translate.marked_text import Text
from .archive import Archive
from .document import Document
from .html import is_footnote
from .office import FormattedPart, Inline, XmlNode, XmlPart, paired, script_and_locale

_TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml"
_MAIN = (f"{_TYPE}.document.main+xml", f"{_TYPE}.template.main+xml")
_WITH_TEXT = [f"{_TYPE}.{kind}+xml" for kind in ("header", "footer", "footnotes", "endnotes", "comments")]
_STYLES = f"{_TYPE}.styles+xml"
_PROPERTIES = "application/vnd.openxmlformats-package.core-properties+xml"
_READ_PROPERTIES = ("dc:title", "dc:subject", "dc:description")

# Within a paragraph, elements that format nothing themselves.
_CONTAINERS = {"w:bdo", "w:customXml", "w:dir", "w:hyperlink", "w:ins", "w:moveTo", "w:sdt", "w:smartTag"}
_DELETED = {"w:del", "w:moveFrom"}
_BREAKS = {"w:br", "w:cr", "w:ptab", "w:tab"}
_LEFT_OUT = {"w:lastRenderedPageBreak", "w:proofErr"}  # they are about the old words and lines
_HYPHEN = "&\3;"  # in texts: a hyphen that does not end a line; XML cannot contain the character in it
_FORMATS_NOTHING = {"w:lang", "w:noProof", "w:rPrChange"}
_SHOWN_FIELDS = {"FORMTEXT", "HYPERLINK", "INDEX", "TOC"}  # whose results are text; others are computed
_HINT = re.compile(r"""\s+[^\s=]*hint=("[^"]*"|'[^']*')""")
_LANGUAGE_ATTRIBUTES = {"western": "val", "asian": "eastAsia", "complex": "bidi"}


def read_docx(content: bytes, kept: KeptWords, target: str | None = None) -> Document[bytes]:
    """
    Read the text of a Word document: of its body, headers, footers, notes, comments and text boxes, descriptions of
    pictures, and its title, subject and comments in its properties. The language of text becomes `target`.

    Raises:
        UserError: it is not a Word document, or is damaged, encrypted or too large.
    """
    archive = Archive(content, ".docx")
    listed = archive.read("[Content_Types].xml", XmlPart).root.find("ct:Override")
    types = {override.attributes.get("PartName", "")[1:]: override.attributes.get("ContentType") for override in listed}
    if not any(kind in _MAIN for kind in types.values()):
        raise UserError("not a .docx file: it contains no document of Word")
    change = _in_language(target)
    parts: dict[str, Document[bytes]] = {}
    for kind in (*_MAIN, *_WITH_TEXT, _STYLES, _PROPERTIES):
        for name in (name for name in types if types[name] == kind and (kind in _MAIN or name in archive)):
            read = partial(XmlPart, texts=_READ_PROPERTIES) if kind == _PROPERTIES else _Part
            parts[name] = archive.read(name, lambda part, read=read: read(part).document(kept, change))
    return archive.document(parts)


def _in_language(target: str | None) -> Callable[[str], str]:
    """Returns a function that sets the language of text, which is used to check its spelling and to hyphenate it."""
    if (known := script_and_locale(target)) is None:
        return str
    script, *locale = known
    attribute = re.compile(rf'(<w:lang\b[^>]*\bw:{_LANGUAGE_ATTRIBUTES[script]}=")[^"]*')
    return lambda text: attribute.sub(rf"\g<1>{'-'.join(filter(None, locale))}", text)


class _Part(FormattedPart):
    """A part with paragraphs."""

    opaque = frozenset(_DELETED)
    attributes = {"wp:docPr": "descr|title"}  # of a picture
    paragraphs = frozenset({"w:p"})

    def __init__(self, content: bytes):
        super().__init__(content)
        self._fields: list[str] = []  # the open ones, which may end in a later paragraph
        self._field_count = 0
        root = self.root.elements[0]
        self._prefix = re.match(r"<([^\s/>:]*:)?", self.opening(root))[1] or ""
        self._format_of_run(f"<{self._prefix}r>", "")  # the first format: that of runs without properties

    def has_text(self, node: XmlNode) -> bool:
        return any(
            (child.name == "w:t" and any(is_translatable(text.plain) for text in child.children))
            or (child.name not in ("w:p", *_DELETED) and self.has_text(child))
            for child in node.children
        )

    def finished(self, text: str) -> str:
        prefix = self._prefix
        hyphen = f'</{prefix}t><{prefix}noBreakHyphen/><{prefix}t xml:space="preserve">'
        return super().finished(text).replace(_HYPHEN, hyphen)

    def inlines(self, node: XmlNode) -> list[Inline]:
        return list(self._with_fields(list(self._inlines(node))))

    def _inlines(self, node: XmlNode) -> Iterator[Inline]:
        for child in node.children:
            name = child.name
            if name == "w:r":
                yield from self._run(child)
            elif name in _CONTAINERS:
                inner = next((content for content in child.children if content.name == "w:sdtContent"), child)
                properties = [part for part in inner.children if part.name.endswith("Pr")]
                yield Inline("open", self.source(child.start, inner.first) + "".join(map(self.raw, properties)))
                yield from self._inlines(inner)
                yield Inline("close", self.source(inner.last, child.end))
            elif name.endswith(("Start", "End")) and "w:id" in child.attributes:
                kind, what = ("start", name[:-5]) if name.endswith("Start") else ("stop", name[:-3])
                yield Inline(kind, self.written(child), name=f"{what} {child.attributes['w:id']}")
            elif name and name not in _LEFT_OUT and not name.endswith("Pr"):
                yield Inline("atom", self.written(child))

    def _format_of_run(self, before: str, key: str) -> int:
        before, after = f'{before}<{self._prefix}t xml:space="preserve">', f"</{self._prefix}t></{self._prefix}r>"
        return self.format(key, before, after)

    def _run(self, node: XmlNode) -> Iterator[Inline]:
        """Each part of a run, in a run of its own."""
        properties = next((child for child in node.children if child.name == "w:rPr"), None)
        before, after = self.opening(node) + (self.raw(properties) if properties else ""), f"</{self._prefix}r>"
        key = "".join(map(self._key, properties.children)) if properties else ""
        format = self._format_of_run(before, key)
        for child in node.children:
            if child.name in ("", "!", "w:rPr", *_LEFT_OUT):
                continue
            raw, texts = before + self.written(child) + after, self._texts(child)
            plain = "".join(text.plain for text in texts)
            if plain and '"superscript"' in key and is_footnote("sup", plain):
                yield Inline("atom", raw)
            elif plain:
                yield Inline("text", raw, texts, format)
            elif child.name in _BREAKS:
                yield Inline("break", raw)
            elif child.name == "w:fldChar":
                yield self._field_part(child.attributes.get("w:fldCharType", ""), raw)
            elif child.name == "w:instrText":
                yield Inline("code", raw, name="".join(text.plain for text in child.children))
            elif child.name != "w:t":
                yield Inline("atom", raw)

    def _key(self, node: XmlNode) -> str:
        """What a property contributes to a format."""
        if node.name in ("", *_FORMATS_NOTHING):
            return ""
        raw = _HINT.sub("", self.raw(node))  # it is about the characters of the old text
        return "" if raw == f"<{self._prefix}rFonts/>" else raw

    def _texts(self, node: XmlNode) -> list[Text]:
        """The text of a part of a run. That of ruby is the base, since a translation is read otherwise."""
        if node.name == "w:t":
            return self.text_tokens(node)
        if node.name == "w:noBreakHyphen":
            return [Text(_HYPHEN, "-")]
        if node.name == "w:ruby":
            bases = [text for base in node.find("w:rubyBase") for text in base.find("w:t")]
            return [token for text in bases for token in self.text_tokens(text)]
        return []

    def _field_part(self, kind: str, raw: str) -> Inline:
        if kind == "begin":
            self._field_count += 1
            self._fields.append(f"field {self._field_count}")
            return Inline("start", raw, name=self._fields[-1])
        if kind == "end" and self._fields:
            return Inline("stop", raw, name=self._fields.pop())
        return Inline("separate", raw)

    @staticmethod
    def _with_fields(inlines: list[Inline]) -> Iterator[Inline]:
        """
        Make an atom of each field that begins and ends in the paragraph; or, if its result is text, a range, which its
        code precedes.
        """
        ends, index = paired(inlines), 0
        while index < len(inlines):
            inline, start = inlines[index], index
            index += 1
            if inline.kind in ("code", "separate"):
                yield Inline("atom", inline.raw)
            elif start not in ends or not inline.name.startswith("field "):
                yield inline
            else:
                code = ""
                while inlines[index].kind == "code":
                    code, index = code + inlines[index].name, index + 1
                is_shown = inlines[index].kind == "separate" and code.split()[:1] and code.split()[0] in _SHOWN_FIELDS
                index = index + 1 if is_shown else ends[start] + 1
                raw = "".join(part.raw for part in inlines[start:index])
                yield Inline("start", raw, name=inline.name) if is_shown else Inline("atom", raw)
