"""ODT: translates the text of paragraphs; everything else in the archive stays as it is."""

import re
from collections.abc import Callable, Iterator
from functools import partial

from ...errors import UserError
from ...model.kept_words import KeptWords
from ...model.text import is_translatable
from ..translate.marked_text import Text
from .archive import ENCRYPTED, Archive
from .document import Document
from .html import is_footnote
from .office import FormattedPart, Inline, XmlNode, XmlPart, script_and_locale

_TYPE = b"application/vnd.oasis.opendocument.text"
_READ_ELEMENTS = ("svg:desc", "svg:title", "text:index-title-template")
_READ_PROPERTIES = ("dc:description", "dc:subject", "dc:title")
_CONTAINERS = {"text:a", "text:meta"}  # within a paragraph, elements that format nothing themselves
_BREAKS = {"text:line-break", "text:tab"}
_RANGES = {"office:annotation": "start", "office:annotation-end": "stop"}
_RANGES |= {f"text:{name}-start": "start" for name in ("bookmark", "change", "reference-mark")}
_RANGES |= {f"text:{name}-end": "stop" for name in ("bookmark", "change", "reference-mark")}
_RANGE_NAMES = ("office:name", "text:change-id", "text:name")
# Attributes of formats that do not show: when text was written, and in which language.
_HIDDEN = re.compile(r'\s[\w-]+:(?:(?:paragraph-)?rsid|(?:language|country)(?:-asian|-complex)?)="[^"]*"')
_LANGUAGE_ATTRIBUTES = {"western": "fo:{}", "asian": "style:{}-asian", "complex": "style:{}-complex"}


def read_odt(content: bytes, kept: KeptWords, target: str | None = None) -> Document[bytes]:
    """
    Read the text of an OpenDocument text: of its body, headers, footers, notes, comments and text boxes, titles and
    descriptions of pictures, and its title, subject and comments in its properties. The language of text becomes
    `target`.

    Raises:
        UserError: it is not an OpenDocument text, or is damaged, encrypted or too large.
    """
    archive = Archive(content, ".odt")
    if not archive.read("mimetype").startswith(_TYPE):
        raise UserError("not an .odt file: it contains no text document")
    if b"encryption-data" in archive.read("META-INF/manifest.xml"):
        raise UserError(ENCRYPTED)
    change = _in_language(target)
    parts: dict[str, Document[bytes]] = {}
    readers = {
        "content.xml": partial(_Part, texts=_READ_ELEMENTS),
        "styles.xml": partial(_Part, texts=_READ_ELEMENTS),
        "meta.xml": partial(XmlPart, texts=_READ_PROPERTIES),
    }
    for name, read in readers.items():
        if name == "content.xml" or name in archive:
            parts[name] = archive.read(name, lambda part, read=read: read(part).document(kept, change))
    return archive.document(parts)


def _in_language(target: str | None) -> Callable[[str], str]:
    """Returns a function that sets the language of text, which is used to check its spelling and to hyphenate it."""
    if (known := script_and_locale(target)) is None:
        return str
    script, language, country = known
    attribute = _LANGUAGE_ATTRIBUTES[script]
    values = {attribute.format("language"): language, attribute.format("country"): country or "none"}
    pattern = re.compile(rf'(?<=\s)({"|".join(values)})="[^"]*"|<dc:language>[^<]*')

    def changed(match: re.Match) -> str:
        if match[1] is None:
            return f"<dc:language>{'-'.join(filter(None, (language, country)))}"
        return f'{match[1]}="{values[match[1]]}"'

    return lambda text: pattern.sub(changed, text)


class _Part(FormattedPart):
    """A part with paragraphs."""

    opaque = frozenset({"text:tracked-changes"})  # with what was deleted
    attributes = {"table:table-cell": "office:string-value"}
    paragraphs = frozenset({"text:h", "text:p"})

    def __init__(self, content: bytes, texts: tuple[str, ...]):
        super().__init__(content, texts)
        self.format("", "", "")  # the first format: that of the paragraph
        found = [style for styles in self.root.find("office:automatic-styles") for style in styles.children]
        self._keys = {style.attributes.get("style:name"): self._key(style) for style in found if style.name}

    def _key(self, style: XmlNode) -> str:
        """The same for styles that look the same; empty if this one looks like the text around it."""
        properties = (_HIDDEN.sub("", self.raw(child)) for child in style.children if child.name)
        parent = style.attributes.get("style:parent-style-name", "")
        return "".join([parent, *(raw for raw in properties if not re.fullmatch(r"<[\w:-]+\s*/>", raw))])

    def has_text(self, node: XmlNode) -> bool:
        return any(
            is_translatable(child.plain) or (child.name not in self.paragraphs and self.has_text(child))
            for child in node.children
        )

    def inlines(self, node: XmlNode) -> list[Inline]:
        return list(self._inlines(node, "", "", ""))

    def _inlines(self, node: XmlNode, key: str, before: str, after: str) -> Iterator[Inline]:
        """
        Args:
            key: of the format of text directly in this element.
            before, after: the tags of the spans around it.
        """
        for child in node.children:
            name, format = child.name, self.format(key, before, after)
            if name == "text:span":
                style = child.attributes.get("text:style-name", "")
                more = self._keys.get(style, style)
                tags = (self.opening(child), self.source(child.last, child.end)) if more else ("", "")
                yield from self._inlines(child, key + more, before + tags[0], tags[1] + after)
                continue
            if name in _CONTAINERS:
                yield Inline("open", self.opening(child))
                yield from self._inlines(child, key, before, after)
                yield Inline("close", self.source(child.last, child.end))
                continue
            if name == "text:soft-page-break":  # it belongs to the old lines
                continue
            raw, texts = before + self.written(child) + after, self._texts(child)
            if ' style:text-position="super' in key and is_footnote("sup", "".join(text.plain for text in texts)):
                yield Inline("atom", raw)
            elif texts:
                yield Inline("text", raw, texts, format)
            elif name in _RANGES:
                identifier = next((child.attributes[key] for key in _RANGE_NAMES if key in child.attributes), "")
                what = name.removesuffix("-start").removesuffix("-end")
                yield Inline(_RANGES[name], raw, name=f"{what} {identifier}")
            else:
                yield Inline("break" if name in _BREAKS else "atom", raw)

    def _texts(self, node: XmlNode) -> list[Text]:
        """The text of a part of a paragraph. That of ruby is the base, since a translation is read otherwise."""
        if not node.name:
            return [Text(self.raw(node), node.plain)]
        if node.name == "text:s":
            return [Text(self.raw(node), " ")]
        if node.name == "text:ruby":
            plain = "".join(text.plain for base in node.find("text:ruby-base") for text in base.find(""))
            return [Text(self.raw(node), plain)]
        return []
