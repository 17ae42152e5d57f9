"""The message catalogs that are installed on a machine, with the licenses of their packages."""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

from ...errors import UserError
from ...files import new_output
from ...languages import preference
from .corpus_files import tag_of_locale, walk
from .corpus_from import PairWriter, Told, check_ending
from .gettext_catalogs import CatalogMessage, catalog_units, mo_catalog, not_english
from .units import Request, Unit

ENGLISH = "en"
_CATALOG = re.compile(r"(?:.*/)?([A-Za-z]{2,3}(?:[_@.-][A-Za-z0-9_@.-]+)?)/LC_MESSAGES/[^/]+\.mo")
# Of Debian's machine-readable copyright files, and of others.
_LICENSE = re.compile(r"^License:[ \t]*(\S[^\n]*)", re.MULTILINE)
_MAIN = re.compile(r"^Files:[ \t]*\*[ \t]*\n(?:[ \t].*\n|(?!License:)\S.*\n)*?License:[ \t]*(\S[^\n]*)", re.MULTILINE)
_COMMON = re.compile(r"/usr/share/common-licenses/([\w.+-]*\w)")
UNKNOWN = "unknown: no package manager that is read here (dpkg, pip) owns it"


@dataclass(frozen=True)
class Catalog:
    """
    An installed catalog.

    Args:
        tag: of its language.
        package: its package; empty: unknown.
        license: that of the package, in words, and where it is from.
    """

    path: Path
    tag: str
    package: str = ""
    license: str = UNKNOWN

    @property
    def origin(self) -> str:
        return f"{self.package}/{self.path.stem}" if self.package else self.path.stem


def corpus_from_system(
    language: str, output: Path, root: Path = Path("/"), python: Sequence[str] | None = None
) -> list[tuple[Catalog, Told]]:
    """
    Write the messages of all catalogs in a language to JSONL. Where there is an English catalog too, its text is the
    English one; other messages that are no English are skipped.

    Args:
        root: where the machine's files are.
        python: the folders of Python's packages; None: those of this interpreter.

    Raises:
        UserError: there is no catalog in this language.
    """
    check_ending(output)
    request = Request(ENGLISH, language)
    catalogs = installed_catalogs(root, python)
    if not (chosen := _in_language(catalogs, language)):
        tags = ", ".join(sorted({catalog.tag for catalog in catalogs})) or "none"
        raise UserError(f"no catalogs in {language} are installed; there are {tags}")
    told: list[tuple[Catalog, Told]] = []
    with new_output(output) as temporary, temporary.open("wb") as file:
        writer = PairWriter(file, request)
        for catalog in chosen:
            package = catalog.package or catalog.path.stem
            told.append((catalog, writer.write(catalog.origin, _units(catalog), package=package)))
    return told


def _units(catalog: Catalog) -> Iterator[Unit]:
    header, messages = _read(catalog.path)
    folder = catalog.path.parents[2]  # of locales
    english = {
        _key(message): message.forms for message in _read(folder / ENGLISH / "LC_MESSAGES" / catalog.path.name)[1]
    }
    problem = not_english([message for message in messages if _key(message) not in english])
    for number, message in enumerate(messages):
        if (forms := english.get(_key(message))) is not None:
            messages[number] = replace(message, sources=[forms[0], forms[-1]][: len(message.sources)])
        elif problem is not None:
            messages[number] = replace(message, skipped=f"whose messages are {problem}")
    yield from catalog_units(header, messages)


def _key(message: CatalogMessage) -> tuple[str | None, str]:
    return message.context, message.sources[0]


def _read(path: Path) -> tuple[str, list[CatalogMessage]]:
    return mo_catalog(next(walk(path))) if path.is_file() else ("", [])


# -- which catalogs there are ------------------------------------------------------------------------------------------


def installed_catalogs(root: Path, python: Sequence[str] | None = None) -> list[Catalog]:
    """The catalogs of Debian's packages, of Python's, and others in /usr/share; sorted, each file once."""
    folders = python if python is not None else _python_folders(root)
    found: dict[Path, Catalog] = {}
    for catalog in (*_debian(root), *_python(folders), *_without_package(root)):
        with suppress(OSError):
            found.setdefault(catalog.path.resolve(strict=True), catalog)
    return sorted(found.values(), key=lambda catalog: (catalog.origin, str(catalog.path)))


def _debian(root: Path) -> Iterator[Catalog]:
    license_of = cache(_debian_license)
    for listed in sorted(root.glob("var/lib/dpkg/info/*.list")):
        text = listed.read_text(encoding="utf-8", errors="replace")
        if "/LC_MESSAGES/" not in text:
            continue
        package = listed.stem.partition(":")[0]
        for path in text.split("\n"):
            if match := _CATALOG.fullmatch(path):
                license = license_of(root / f"usr/share/doc/{package}/copyright")
                yield Catalog(root / path.lstrip("/"), tag_of_locale(match[1]), package, license)


def _debian_license(path: Path) -> str:
    """The licenses that a Debian package's copyright file names, the main one first."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"unknown: {path} is not on this machine"
    names = _LICENSE.findall(text) if text.startswith("Format:") else _COMMON.findall(text)
    main, *others = dict.fromkeys([*_MAIN.findall(text), *names]) or ["see there"]
    return f"{main}{f' and {len(others)} more' if others else ''} ({path})"


def _python_folders(root: Path) -> list[str]:
    patterns = ("usr/lib/python3*/*-packages", "usr/local/lib/python3*/*-packages")
    return [*sys.path, *(str(path) for pattern in patterns for path in sorted(root.glob(pattern)))]


def _python(folders: Sequence[str]) -> Iterator[Catalog]:
    for distribution in distributions(path=list(dict.fromkeys(folders))):
        for line in (distribution.read_text("RECORD") or "").split("\n"):
            path = line.rsplit(",", 2)[0].strip('"')
            if match := _CATALOG.fullmatch(path):
                place = Path(str(distribution.locate_file(path)))
                yield Catalog(place, tag_of_locale(match[1]), distribution.name, _python_license(distribution))


def _python_license(distribution: Distribution) -> str:
    metadata = distribution.metadata
    classified = [
        name.rpartition(" :: ")[2] for name in metadata.get_all("Classifier") or [] if name.startswith("License")
    ]
    named = (
        metadata.get("License-Expression") or (metadata.get("License") or "").split("\n")[0] or ", ".join(classified)
    )
    return f"{named or 'not named'} (metadata of {distribution.name} {distribution.version})"


def _without_package(root: Path) -> Iterator[Catalog]:
    for share in ("usr/share", "usr/local/share"):
        for path in sorted(root.glob(f"{share}/locale*/*/LC_MESSAGES/*.mo")):
            if match := _CATALOG.fullmatch(str(path)):
                yield Catalog(path, tag_of_locale(match[1]))


def _in_language(catalogs: list[Catalog], language: str) -> list[Catalog]:
    """Of each domain in each folder, the catalog whose language serves best."""
    found = defaultdict(list)
    for catalog in catalogs:
        if (rank := preference(language, catalog.tag)) is not None:
            found[catalog.path.parents[2], catalog.path.name].append((rank, catalog))
    return [min(ranked, key=lambda pair: pair[0])[1] for ranked in found.values()]
