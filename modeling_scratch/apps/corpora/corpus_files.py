"""The files of a corpus: walk folders and ZIP archives, unpack, decode; find which two translate each other."""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

from ...errors import UserError, as_user_error
from ...languages import base_language, is_written_language, language_code
from .units import Request

_LARGEST_TEXT = 512 * 2**20  # bytes of a file that is read as a whole
_CHUNK = 2**20
# Texts compress to a tenth, and tables of numbers to a hundredth.
_MOST_EXPANDED, _ALWAYS_ALLOWED = 300, 64 * 2**20
_DAMAGED = (EOFError, zlib.error, BadZipFile, gzip.BadGzipFile, NotImplementedError, RuntimeError)
_SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl"}  # modifiers of locales, as in sr@latin
_LOCALE_FOLDER = re.compile(r"(?:^|/)([A-Za-z]{2,3}(?:[_@.-][A-Za-z0-9_@.-]+)?)/LC_[A-Z]+/[^/]+$")
# The end of a name without its ending: a tag (fr, pt_BR, zh-Hant_TW, sr@latin), or all of a name in small letters.
_END_OF_NAME = re.compile(
    r"(?:^|[._-])([A-Za-z]{2,3}(?:[_-][A-Z][a-z]{3})?(?:[_-](?:[A-Z]{2}|[0-9]{3}))?(?:@[a-z]+)?)$|^([a-z]{2}[_-][a-z]{2})$"
)
_CHARSETS = "convert it to UTF-8, such as by: iconv -f WINDOWS-1252 -t UTF-8"


@dataclass(frozen=True)
class CorpusFile:
    """
    A file, or a part of a ZIP archive.

    Args:
        name: for messages and origins: its path, or that of the archive, "/" and the name of the part.
        opener: opens it, compressed or not.
        size: in bytes, before it is unpacked.
        is_named: whether the user named it, rather than a folder or archive with it.
    """

    name: str
    opener: Callable[[], IO[bytes]]
    size: int
    is_named: bool = True

    @property
    def plain_name(self) -> str:
        """The name without .gz."""
        return self.name.removesuffix(".gz")

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """The unpacked content. UserError names the file, if it is damaged or unpacks to far more than text does."""
        with as_user_error(f"{self.name}: damaged: ", _DAMAGED), self.opener() as file:
            if self.plain_name != self.name:
                yield _Unpacked(gzip.GzipFile(fileobj=file), self.size, self.name)
            elif isinstance(file, io.BufferedReader):
                yield file
            else:  # a part of an archive
                yield _Unpacked(file, self.size, self.name)

    def content(self) -> bytes:
        """All of the file."""
        parts = []
        with self.opened() as file:
            while (part := file.read(_CHUNK)) and len(parts) * _CHUNK <= _LARGEST_TEXT:
                parts.append(part)
        if len(parts) * _CHUNK > _LARGEST_TEXT:
            raise UserError(f"{self.name}: larger than {_LARGEST_TEXT >> 20} MiB; split it into several files")
        return b"".join(parts)

    def text(self, encodings: Iterable[str] = ("utf-8",)) -> str:
        """The text of the file, which has a byte order mark or is in the first of these encodings that fits."""
        return decoded(self.content(), self.name, encodings)

    def lines(self) -> Iterator[str]:
        """The lines of a file in UTF-8, without their ends."""
        with self.opened() as file:
            number = 0
            try:
                for number, line in enumerate(_lines(file), start=1):
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{self.name}, line {number:,}: not valid UTF-8 ({error.reason}); {_CHARSETS}"
                ) from None


def decoded(content: bytes, name: str, encodings: Iterable[str] = ("utf-8",)) -> str:
    """See `CorpusFile.text`."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings = ("utf-16",)
    for encoding in encodings:
        try:
            text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
            return re.sub("\r\n?", "\n", text)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            problem = f"{name}, line {line:,}: not valid {encoding.upper()} ({error.reason}); {_CHARSETS}"
        except LookupError:
            problem = f"{name}: declares the unknown encoding {encoding}"
    raise UserError(problem)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, which may have no other method than `read`."""
    rest = b""
    while part := file.read(_CHUNK):
        *whole, rest = (rest + part).split(b"\n")
        if len(rest) > _ALWAYS_ALLOWED:
            raise UserError(f"{getattr(file, 'name', 'a file')}: a line of more than {_ALWAYS_ALLOWED >> 20} MiB")
        yield from whole
    if rest:
        yield rest


class _Unpacked:
    """The unpacked content of a file of this size, which may not be far larger."""

    def __init__(self, file: IO[bytes], size: int, name: str):
        self._file, self._left, self.name = file, max(_ALWAYS_ALLOWED, _MOST_EXPANDED * size), name

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise UserError(f"{self.name}: unpacks to more than {_MOST_EXPANDED} times its size, as no text does")
        return content


def check_archive(archive: ZipFile, name: str) -> None:
    """Raise UserError for an archive with a part that unpacks to far more than text does, or is encrypted."""
    for entry in archive.infolist():
        if entry.file_size > max(_ALWAYS_ALLOWED, _MOST_EXPANDED * entry.compress_size):
            raise UserError(
                f"{name}: {entry.filename} unpacks to more than {_MOST_EXPANDED} times its size, as no text does"
            )
        if entry.flag_bits & 1:
            raise UserError(f"{name}: encrypted with a password; save it without one")


def walk(path: Path, is_named: bool = True) -> Iterator[CorpusFile]:
    """The files in a folder, sorted, without hidden ones; the parts of a ZIP archive; or the file itself."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            if not child.name.startswith("."):
                yield from walk(child, is_named=False)
    elif path.suffix.lower() == ".zip":
        with as_user_error(f"{path}: damaged: ", _DAMAGED):
            archive = ZipFile(path)
        check_archive(archive, str(path))
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            if not entry.is_dir() and not any(part.startswith((".", "__MACOSX")) for part in entry.filename.split("/")):
                opener = lambda entry=entry: archive.open(entry)  # noqa: E731
                yield CorpusFile(f"{path}/{entry.filename}", opener, entry.compress_size, is_named=False)
    else:
        yield CorpusFile(str(path), lambda: path.open("rb"), path.stat().st_size, is_named)


# -- the languages of paths --------------------------------------------------------------------------------------------


def tag_of_path(name: str) -> str:
    """
    The language tag that the path of a file clearly names: that of the folder before LC_MESSAGES (or another category
    of locales), or else the end or all of the file's name, as in app_fr.ts, messages.pt-BR.xlf and fr.po. Empty: none.
    """
    if match := _LOCALE_FOLDER.search(name):
        return tag_of_locale(match[1]) if language_code(re.split("[.@]", match[1])[0]) else ""
    match = _END_OF_NAME.search(Path(name).stem)
    locale = (match[1] or match[2]) if match else ""
    parts = re.split("[_@-]", locale)
    # "app_DE" ends in a language, too, though "app" is the code of one.
    if len(parts) > 1 and not is_written_language(parts[0]):
        locale = parts[-1]
    return tag_of_locale(locale) if is_written_language(locale.partition("@")[0]) else ""


def tag_of_locale(name: str) -> str:
    """The language tag of a locale: de-AT for de_AT.UTF-8, sr-Latn for sr@latin; other modifiers stay as they are."""
    locale, _, modifier = name.partition("@")
    language, *region = re.split("[_-]", locale.partition(".")[0])
    script = _SCRIPTS.get(modifier.lower())
    if modifier and script is None:
        return name
    return "-".join([language, *([script] if script else []), *region])


# -- files in one language, in pairs -----------------------------------------------------------------------------------

_RANK_OF_BASE = 1.5  # worse than the language itself, and better than one of its regions; see `preference`
HOW_TO_PAIR = (
    "a file in one language needs the same file in the other: name both (app_en.json app_de.json), or their folder, if "
    "their paths differ in the language alone, or as SOURCE:TARGET otherwise (first.json:second.json)"
)


def paired_files(
    files: Iterable[CorpusFile], request: Request
) -> tuple[list[tuple[CorpusFile, CorpusFile]], list[str]]:
    """
    Files in one language as pairs of source and target, and the names of those that are alone. Paths of a pair are
    the same without their languages: app_en.arb and app_de.arb, en/menu.json and de/menu.json, values/strings.xml and
    values-de/strings.xml. A file without a language is the source, if no other is.
    """
    found: tuple[dict[str, tuple[float, CorpusFile]], ...] = ({}, {})  # of each side: rank and file, by path
    files = list(files)
    for file in files:
        side, rank, keys = _language_of_path(file.plain_name, request)
        for key in keys:
            if key not in found[side] or rank < found[side][key][0]:
                found[side][key] = rank, file
    pairs: dict[CorpusFile, CorpusFile] = {}
    for key, (_, source) in found[0].items():
        if key in found[1] and source not in pairs:
            pairs[source] = found[1][key][1]
    used = {file.name for pair in pairs.items() for file in pair}
    return list(pairs.items()), [file.name for file in files if file.name not in used]


def _language_of_path(name: str, request: Request) -> tuple[int, float, list[str]]:
    """
    The side that a path names, how well its language serves, and the path without its last language, and without all.
    """
    path = name.replace("/Base.lproj/", "/.lproj/")
    if path.lower().endswith((".sgm", ".sgml")):
        path = re.sub(r"[-_.](?:src|ref)(?=[-_.])", "", path, flags=re.IGNORECASE)
    found = []
    for side, asked in enumerate((request.source, request.target)):
        language = re.split("[-_]", asked)[0]
        region = r"(?:[-_]r?[A-Za-z]{2}|[-_][A-Za-z]{4}|[-_][0-9]{3})?"
        for match in re.finditer(
            rf"(?<![A-Za-z0-9])(?:{language}{region}|{language})(?![A-Za-z0-9])", path, re.IGNORECASE
        ):
            for tag in dict.fromkeys((re.sub("[-_]r?(?=[A-Z]{2}$)|_", "-", match[0]), language)):
                if (rank := request.rank(side, tag)) is not None:
                    end = match.end() if tag != language else match.start() + len(language)
                    found.append((match.start(), end, side, rank))
                    break
    if not found:
        # The resources of a region hold what differs from those without a language, which are mostly English.
        is_base = base_language(request.source) == "en" and path.lower().endswith((".properties", ".xml", ".strings"))
        return 0, _RANK_OF_BASE if is_base else 9, [path]
    _, _, side, rank = max(found)
    places = [(start, end) for start, end, of, _ in sorted(found) if of == side]
    return side, rank, list(dict.fromkeys((_without(path, places[-1:]), _without(path, places))))


def _without(path: str, places: list[tuple[int, int]]) -> str:
    """A path without languages, and what separates each from what is before it."""
    for start, end in reversed(places):
        path = path[:start].removesuffix("-").removesuffix("_").removesuffix(".") + path[end:]
    return path
