"""EPUB: translates the pages of a book, its title, description and table of contents; everything else stays."""

import re
from posixpath import dirname, join, normpath
from urllib.parse import unquote

from ...errors import UserError
from ...model.kept_words import KeptWords
from .archive import Archive
from .document import Document, read_document
from .office import XmlNode, XmlPart

_PAGES = {"application/xhtml+xml", "text/html"}
_CONTENTS = "application/x-dtbncx+xml"  # the table of contents of EPUB 2
_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_ROOT = re.compile(rb"<(?:html|ncx)\b[^>]*>")
_LANGUAGE = re.compile(rb"""(\s(?:xml:)?lang\s*=\s*["'])[^"']*""")


def read_epub(content: bytes, kept: KeptWords, target: str | None = None) -> Document[bytes]:
    """
    Read the pages of a book, as HTML, its title and description, and its table of contents. The language of the book
    and of its pages becomes `target`.

    Raises:
        UserError: it is not an EPUB, or is damaged, encrypted or too large.
    """
    tag = target and target.replace("_", "-")
    archive = Archive(content, ".epub")
    files = archive.read(_CONTAINER, XmlPart).root.find("container:rootfile")
    package = next((file.attributes["full-path"] for file in files if "full-path" in file.attributes), None)
    if package is None:
        raise UserError(f"damaged: {_CONTAINER} names no package")
    book = archive.read(package, _Package)
    items = list(book.root.find("opf:item"))
    names = [normpath(join(dirname(package), unquote(item.attributes.get("href", "")))) for item in items]
    kinds = {name: item.attributes.get("media-type") for name, item in zip(names, items, strict=True)}
    pages = [name for name, kind in kinds.items() if kind in _PAGES and name in archive]
    if not pages:
        raise UserError(f"damaged: {package} names no pages")
    if _ENCRYPTION in archive:
        references = archive.read(_ENCRYPTION, XmlPart).root.find("enc:CipherReference")
        if {unquote(reference.attributes.get("URI", "")) for reference in references} & set(pages):
            raise UserError("its pages are encrypted (DRM), so that only some programs can read them")
    parts: dict[str, Document[bytes]] = {}
    for name in pages:
        parts[name] = _in_language(archive.read(name, lambda page: read_document(page, "html", kept)), tag)
    for name in (name for name, kind in kinds.items() if kind == _CONTENTS and name in archive):
        contents = archive.read(name, lambda part: XmlPart(part, ["ncx:text"]).document(kept))
        parts[name] = _in_language(contents, tag)
    language = re.compile(r"(<(?:\w+:)?language\b[^>]*>)[^<]*")
    parts[package] = book.document(kept, lambda text: language.sub(rf"\g<1>{tag}", text) if tag else text)
    return archive.document(parts)


def _in_language(document: Document[bytes], tag: str | None) -> Document[bytes]:
    """A page whose root element names another language."""
    if tag is None:
        return document

    def changed(root: re.Match[bytes]) -> bytes:
        return _LANGUAGE.sub(rb"\g<1>" + tag.encode(), root[0])

    return Document(document.paragraphs, lambda found: _ROOT.sub(changed, document.write(found), count=1))


class _Package(XmlPart):
    """What a book says of itself. A description with tags stays."""

    def __init__(self, content: bytes):
        super().__init__(content, ["dc:title", "dc:description"])

    def inner(self, node: XmlNode) -> str:
        is_marked = node.name == "dc:description" and any("<" in text.plain for text in node.children)
        return self.source(node.first, node.last) if is_marked else super().inner(node)
