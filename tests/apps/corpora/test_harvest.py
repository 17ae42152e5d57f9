"""The catalogs of a machine: which are read, in which language, with whose license."""

import json

import polib
import pytest

from modeling_scratch.apps.corpora.harvest import corpus_from_system
from modeling_scratch.errors import UserError

COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: debian/*
Copyright: somebody
License: MIT

Files: *
Copyright: 2020 somebody
 and others
License: GPL-3+

License: GPL-3+
 The text.
"""


def catalog(path, messages: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = polib.POFile()
    written.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    written.extend(polib.POEntry(msgid=source, msgstr=target) for source, target in messages.items())
    written.save_as_mofile(path)


@pytest.fixture
def machine(tmp_path):
    """A machine with packages of Debian, one of Python, and a program that no package has."""
    root = tmp_path / "root"
    locales = root / "usr/share/locale"
    catalog(locales / "de/LC_MESSAGES/dog.mo", {"Sit": "Sitz", "Stay here": "Bleib hier"})
    catalog(locales / "de_AT/LC_MESSAGES/dog.mo", {"Sit": "Hock di"})
    catalog(locales / "sr@latin/LC_MESSAGES/dog.mo", {"Sit": "Sedi"})
    catalog(locales / "de/LC_MESSAGES/own.mo", {"Go": "Los"})
    catalog(locales / "de/LC_MESSAGES/keys.mo", {"audioUp": "Lauter", "audioDown": "Leiser", "audio-mute": "Stumm"})
    catalog(locales / "en/LC_MESSAGES/keys.mo", {"audioUp": "Louder"})
    finnish = {f"Tämä on {number}. viesti, jota ei käännetty": f"Meldung {number}" for number in range(20)}
    catalog(locales / "de/LC_MESSAGES/finnish.mo", finnish)
    (locales / "de/LC_MESSAGES/alias.mo").symlink_to("dog.mo")
    info = root / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    names = (
        "de/LC_MESSAGES/dog.mo",
        "de_AT/LC_MESSAGES/dog.mo",
        "sr@latin/LC_MESSAGES/dog.mo",
        "de/LC_MESSAGES/alias.mo",
    )
    (info / "dog:amd64.list").write_text("/.\n/usr\n" + "".join(f"/usr/share/locale/{name}\n" for name in names))
    (info / "gone.list").write_text("/usr/share/locale/de/LC_MESSAGES/gone.mo\n")
    (root / "usr/share/doc/dog").mkdir(parents=True)
    (root / "usr/share/doc/dog/copyright").write_text(COPYRIGHT)
    site = tmp_path / "site"
    catalog(site / "cat/locale/de/LC_MESSAGES/django.mo", {"Miaow": "Miau"})
    (site / "cat-1.0.dist-info").mkdir()
    (site / "cat-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.4\nName: cat\nVersion: 1.0\nLicense-Expression: MIT\n"
    )
    (site / "cat-1.0.dist-info/RECORD").write_text(
        "cat/__init__.py,,\ncat/locale/de/LC_MESSAGES/django.mo,sha256=x,9\n"
    )
    return root, [str(site)]


def harvested(machine, language: str, output):
    told = corpus_from_system(language, output, *machine)
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    licenses = {catalog.origin: catalog.license for catalog, _ in told}
    skipped = {catalog.origin: dict(entry.skipped) for catalog, entry in told if entry.skipped}
    # A catalog that no package owns is its own.
    assert all(row["package"] == row["origin"].partition("#")[0].partition("/")[0] for row in rows)
    return [(row["en"], row[language], row["origin"].partition("#")[0]) for row in rows], licenses, skipped


def test_the_catalogs_of_a_machine(machine, tmp_path):
    rows, licenses, skipped = harvested(machine, "de", tmp_path / "pairs.jsonl")
    assert sorted(rows) == [
        ("Go", "Los", "own"),
        ("Louder", "Lauter", "keys"),
        ("Miaow", "Miau", "cat/django"),
        ("Sit", "Sitz", "dog/dog"),
        ("Stay here", "Bleib hier", "dog/dog"),
    ]
    assert licenses["dog/dog"] == f"GPL-3+ and 1 more ({machine[0]}/usr/share/doc/dog/copyright)"
    assert licenses["cat/django"] == "MIT (metadata of cat 1.0)"
    assert licenses["own"].startswith("unknown: ")
    assert skipped == {
        "keys": {"whose messages are names in a program": 2},
        "finnish": {"whose messages are not English": 20},
    }


def test_the_catalog_that_serves_best_for_a_language(machine, tmp_path):
    assert harvested(machine, "de-AT", tmp_path / "at.jsonl")[0][1] == ("Sit", "Hock di", "dog/dog")
    assert harvested(machine, "sr-Latn", tmp_path / "sr.jsonl")[0] == [("Sit", "Sedi", "dog/dog")]
    with pytest.raises(UserError, match=r"no catalogs in fr are installed; there are de, de-AT, en, sr-Latn"):
        corpus_from_system("fr", tmp_path / "fr.jsonl", *machine)
    assert not (tmp_path / "fr.jsonl").exists()
