"""Documents that are ZIP archives: some parts are translated, and all others are copied."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from io import BytesIO
from itertools import islice
from typing import TypeVar
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from ...errors import UserError, as_user_error
from ..translate.paragraphs import Translated
from .document import Document

ENCRYPTED = "encrypted with a password; save it without one"
_MOST_PARTS = 20_000
_LARGEST = 512 * 2**20  # bytes of all parts
_MOST_TEXT = 32 * 2**20  # bytes of the parts that are read
_IS_ENCRYPTED = 1  # the bit of an entry's flags
_OLE = bytes.fromhex("d0cf11e0a1b11ae1")  # how files of Word 97, and encrypted ones of later versions, begin

Result = TypeVar("Result")


class Archive:
    """
    The archive of a document.

    Args:
        content: its bytes.
        kind: the end of the names of such files, for messages.

    Raises:
        UserError: it is not an archive; or it is damaged, encrypted or too large.
    """

    def __init__(self, content: bytes, kind: str):
        self._left = _MOST_TEXT
        self._damaged = f"not a {kind} file, or damaged"
        if content.startswith(_OLE):
            is_new = "EncryptedPackage".encode("utf-16-le") in content
            raise UserError(ENCRYPTED if is_new else f"in the format of an old version of Word; save it as {kind}")
        with as_user_error(f"{self._damaged}: "):
            self._zip = ZipFile(BytesIO(content))
        entries = self._zip.infolist()
        self._names = {entry.filename for entry in entries}
        if len(entries) > _MOST_PARTS or len(self._names) < len(entries):
            raise UserError(f"damaged: {len(entries):,} parts with {len(self._names):,} names")
        if (size := sum(entry.file_size for entry in entries)) > _LARGEST:
            raise UserError(f"too large: its parts have {size / 2**20:,.0f} MiB, and the limit is {_LARGEST >> 20}")
        if any(entry.flag_bits & _IS_ENCRYPTED for entry in entries):
            raise UserError(ENCRYPTED)
        if any(entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for entry in entries):
            raise UserError(f"damaged: a part is compressed in a way that {kind} does not allow")
        with as_user_error(f"{self._damaged}: "):
            damaged = self._zip.testzip()
        if damaged is not None:
            raise UserError(f"damaged: the content of {damaged} has changed")

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str, read: Callable[[bytes], Result] = bytes) -> Result:
        """
        Read a part, and return what a function makes of its content.

        Raises:
            UserError: there is no such part, the parts that have been read have more than 32 MiB, or the function
                raises one.
        """
        if name not in self._names:
            raise UserError(f"{self._damaged}: it has no {name}")
        self._left -= self._zip.getinfo(name).file_size
        if self._left < 0:
            raise UserError(f"too large: its text and markup have more than {_MOST_TEXT >> 20} MiB")
        try:
            return read(self._zip.read(name))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None

    def document(self, parts: Mapping[str, Document[bytes]]) -> Document[bytes]:
        """A document whose text is that of these parts. The names, order and compression of all parts stay."""

        def write(translations: Sequence[Translated]) -> bytes:
            found, written = iter(translations), BytesIO()
            texts = {name: part.write(list(islice(found, len(part.paragraphs)))) for name, part in parts.items()}
            with ZipFile(written, "w") as target:
                target.comment = self._zip.comment
                for entry in self._zip.infolist():
                    name = entry.filename
                    with self._zip.open(entry) as source, target.open(copy(entry), "w") as file:
                        shutil.copyfileobj(BytesIO(texts[name]) if name in texts else source, file)
            return written.getvalue()

        return Document([paragraph for part in parts.values() for paragraph in part.paragraphs], write)
