"""Catalogs of gettext, and files in one language, whose counterparts are found by their names."""

import gettext
import gzip
import io
import json
import re
import zipfile

import openpyxl
import polib
import pytest
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from corpora import PAIRS, pairs_of, read, request, subtitle_files

from modeling_scratch.apps.corpora.units import Request
from modeling_scratch.errors import UserError

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset={charset}\\n"\n"Language: {language}\\n"\n{more}\n'
MESSAGES = """
msgid "Open the _file"
msgstr "Die _Datei öffnen"

#, fuzzy
msgid "Close it"
msgstr "Öffnen"

msgctxt "menu"
msgid "Open"
msgstr ""

#~ msgid "Gone"
#~ msgstr "Weg"

msgctxt "door"
msgid "Open"
msgstr "Offen"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"
"""
GERMAN = '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n'
POLISH = (
    '"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);\\n"\n'
    '\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%d plik"\nmsgstr[1] "%d pliki"\nmsgstr[2] "%d plików"\n'
)


def po(language: str = "de", charset: str = "UTF-8", more: str = GERMAN, messages: str = MESSAGES) -> bytes:
    return (HEADER.format(language=language, charset=charset, more=more) + messages).encode(charset)


@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-15"])
def test_messages_of_a_catalog(tmp_path, charset):
    (tmp_path / "app.po").write_bytes(po(charset=charset))
    told = []
    rows = read(tmp_path, "app.po", told=told)
    expected = [
        ("Open the _file", "Die _Datei öffnen"),
        ("Open", "Offen"),
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
    ]
    assert pairs_of(rows) == expected
    assert told[0].skipped == {"fuzzy": 1, "without a translation": 1, "obsolete": 1}
    line = int(rows[0]["origin"].rpartition("#")[2])
    assert po(charset=charset).decode(charset).split("\n")[line - 1] == 'msgid "Open the _file"'


def test_a_compiled_catalog_has_what_programs_show(tmp_path):
    """gettext and polib are the judges."""
    (tmp_path / "app.po").write_bytes(po())
    polib.pofile(tmp_path / "app.po").save_as_mofile(tmp_path / "app.mo")
    pairs = dict(pairs_of(read(tmp_path, "app.mo")))
    with (tmp_path / "app.mo").open("rb") as file:
        catalog = gettext.GNUTranslations(file)
    assert pairs["Open the _file"] == catalog.gettext("Open the _file")
    assert pairs["Open"] == catalog.pgettext("door", "Open")
    assert [pairs["%d file"], pairs["%d files"]] == [catalog.ngettext("%d file", "%d files", n) for n in (1, 2)]
    assert len(pairs) == len(polib.mofile(tmp_path / "app.mo")) + 1  # the plural


def test_plurals_that_babel_filled_with_english_are_untranslated(tmp_path):
    messages = MESSAGES + '\nmsgid "%d dog"\nmsgid_plural "%d dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    with (tmp_path / "app.mo").open("wb") as file:
        write_mo(file, read_po(io.BytesIO(po(messages=messages))))
    told = []
    pairs = pairs_of(read(tmp_path, "app.mo", told=told))
    assert ("%d files", "%d Dateien") in pairs
    assert not [pair for pair in pairs if "dog" in pair[0]]
    assert told[0].skipped == {"without a translation": 1}


def test_the_plural_is_paired_with_the_form_for_most_numbers(tmp_path):
    (tmp_path / "pl.po").write_bytes(po("pl", more=POLISH, messages=""))
    wanted = request()
    wanted.target = "pl"
    told = []
    rows = read(tmp_path, "pl.po", told=told, wanted=wanted)
    assert [(row["en"], row["pl"]) for row in rows] == [("%d file", "%d plik"), ("%d files", "%d plików")]
    assert told[0].skipped == {"plural forms without a source of their own": 1}


def test_a_catalog_the_other_way_round_or_in_another_language(tmp_path):
    (tmp_path / "app.po").write_bytes(po())
    wanted = request()
    wanted.source, wanted.target = "de", "en"
    assert read(tmp_path, "app.po", wanted=wanted)[0]["de"] == "Die _Datei öffnen"
    (tmp_path / "fr.po").write_bytes(po("fr"))
    with pytest.raises(UserError, match=r"no pairs of en and de in .*; the files have fr"):
        read(tmp_path, "fr.po")
    wanted.source = wanted.target = "fr"
    with pytest.raises(UserError, match="messages of catalogs are English"):
        read(tmp_path, "fr.po", wanted=wanted)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("locale/fr/LC_MESSAGES/app.po", "fr"),
        ("locale/ast/LC_TIME/app.po", "ast"),
        ("locale/pt_BR/LC_MESSAGES/de.po", "pt-BR"),
        ("locale/en@quot/LC_MESSAGES/app.po", "en@quot"),
        ("po/fr.po", "fr"),
        ("po/pt_br.po", "pt-br"),
        ("po/app-zh_TW.po", "zh-TW"),
        ("po/app.sr@latin.po", "sr-Latn"),
        ("locale/de/LC_MESSAGES/fr.po", ""),
        ("locale/de_AT.UTF-8/LC_MESSAGES/app.po", ""),
        ("po/app_de.po", ""),
        ("po/app_DE.po", ""),
        ("po/de.po", ""),
        ("it/my/app.po", ""),
        ("fr/it_works.po", ""),
        ("po/all.po", ""),
    ],
)
def test_the_path_names_the_language_of_a_catalog_that_does_not(tmp_path, name, tag):
    """`tag`: what is told of a catalog in another language; empty: it is read."""
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(po(""))
    if tag:
        with pytest.raises(UserError, match=rf"the files have {tag}; 6 units in other languages"):
            read(tmp_path, name)
    else:
        assert len(read(tmp_path, name)) == 4
    (tmp_path / name).write_bytes(po("de"))
    assert len(read(tmp_path, name)) == 4


def test_messages_that_are_names_need_the_english_catalog(tmp_path):
    for language, texts in {"en": ("Save now", "Quit"), "de": ("Jetzt sichern", "Beenden")}.items():
        messages = "".join(f'\nmsgid "button.{n}"\nmsgstr "{text}"\n' for n, text in enumerate(texts))
        (tmp_path / f"{language}.po").write_bytes(po(language, messages=messages))
    with pytest.raises(UserError, match=r"de\.po: its messages are names in a program; .* as SOURCE:TARGET"):
        read(tmp_path, "de.po")
    rows = read(tmp_path, f"{tmp_path}/en.po:{tmp_path}/de.po")
    assert pairs_of(rows) == [("Save now", "Jetzt sichern"), ("Quit", "Beenden")]
    assert rows[0]["origin"].endswith("de.po#button.0 0")


# -- files in one language ---------------------------------------------------------------------------------------------

JSON = '{{"greeting": "{}", "menu": {{"items": ["{}"]}}, "count": 3}}'
NAMES = [
    ("en.json", "de.json"),
    ("locales/en/app.json", "locales/de/app.json"),
    ("en/app_en.json", "de/app_de.json"),
    ("app.en-US.json", "app.de-DE.json"),
    ("app_en_GB.arb", "app_de.arb"),
    ("_locales/en/messages.json", "_locales/de/messages.json"),
    ("app.json", "app_de.json"),
    ("de-project/en.json", "de-project/de.json"),
]


def write(folder, name: str, content: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return name


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_two_files_are_a_pair_if_they_differ_in_the_language(tmp_path, names):
    for name, texts in zip(names, (("Hello", "Open"), ("Hallo", "Öffnen")), strict=True):
        write(tmp_path, name, JSON.format(*texts))
    folder = tmp_path / names[0].partition("/")[0] if names[0].startswith("locales") else tmp_path
    for given in ([folder], list(names), list(names[::-1])):
        rows = read(tmp_path, *given)
        assert pairs_of(rows) == [("Hello", "Hallo"), ("Open", "Öffnen")]
        assert rows[1]["origin"].endswith("#menu.items[0]")
        assert rows[1]["origin"].count(".json") + rows[1]["origin"].count(".arb") == 2


def test_files_that_are_alone(tmp_path):
    for name in ("a_en.json", "a_de.json", "a_fr.json", "package.json"):
        write(tmp_path / "app", name, JSON.format("Hello", "Open"))
    told = []
    assert len(read(tmp_path, "app", told=told)) == 2
    with pytest.raises(UserError, match=r"a_fr\.json is alone; .*SOURCE:TARGET"):
        read(tmp_path, "app/a_fr.json")
    rows = read(tmp_path, f"{tmp_path}/app/package.json:{tmp_path}/app/a_fr.json")
    assert len(rows) == 2


def test_keys_of_one_file_alone(tmp_path):
    write(tmp_path, "en.json", '{"a": "one", "b": "two", "@@x": "y"}')
    write(tmp_path, "de.json", '{"a": "eins", "c": "drei"}')
    told = []
    assert pairs_of(read(tmp_path, "en.json", "de.json", told=told)) == [("one", "eins")]
    assert told[0].skipped == {"without a translation": 1, "without a source": 1}


def test_resources_of_android(tmp_path):
    texts = {
        "values": ("Don\\'t <b>stop</b> <xliff:g id='n'>%1$s</xliff:g>", "a dog", "dogs"),
        "values-de": ("Nicht <b>halten</b> <xliff:g id='n'>%1$s</xliff:g>", "ein Hund", "Hunde"),
    }
    for folder, (text, one, other) in texts.items():
        content = (
            '<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">'
            f'<string name="s">{text}</string><string name="id" translatable="false">x</string>'
            f'<string name="r">@string/s</string><string-array name="a"><item>{one}</item></string-array>'
            f'<plurals name="p"><item quantity="one">{one}</item><item quantity="other">{other}</item></plurals>'
            "</resources>"
        )
        write(tmp_path / "res", f"{folder}/strings.xml", content)
    rows = read(tmp_path, "res")
    assert pairs_of(rows) == [
        ("Don't stop %1$s", "Nicht halten %1$s"),
        ("a dog", "ein Hund"),
        ("a dog", "ein Hund"),
        ("dogs", "Hunde"),
    ]
    assert [row["origin"].partition("#")[2] for row in rows] == ["s", "a[0]", "p[one]", "p[other]"]


@pytest.mark.parametrize(
    ("base", "regional", "translated", "line"),
    [
        (
            "values/strings.xml",
            "values-en-rGB/strings.xml",
            "values-de/strings.xml",
            '<string name="k{0}">{1}</string>',
        ),
        ("m.properties", "m_en_GB.properties", "m_de.properties", "k{0}={1}"),
        ("Base.lproj/m.strings", "en-GB.lproj/m.strings", "de.lproj/m.strings", '"k{0}" = "{1}";'),
    ],
)
def test_a_region_holds_only_what_differs(tmp_path, base, regional, translated, line):
    texts = {base: {1: "Color", 2: "Dog"}, regional: {1: "Colour"}, translated: {1: "Farbe", 2: "Hund"}}
    for name, values in texts.items():
        content = "\n".join(line.format(number, text) for number, text in values.items())
        write(tmp_path / "app", name, f"<resources>{content}</resources>" if name.endswith("xml") else content)
    assert pairs_of(read(tmp_path, "app")) == [("Color", "Farbe"), ("Dog", "Hund")]


def test_arrays_are_paired_by_names_or_by_places_if_they_are_equally_long(tmp_path):
    write(
        tmp_path, "en.json", '{"a": [{"id": "1", "t": "Hello"}, {"id": "y", "t": "Bye"}], "b": ["One", "Two", "Three"]}'
    )
    write(tmp_path, "de.json", '{"a": [{"id": "y", "t": "Ade"}, {"id": "1", "t": "Hallo"}], "b": ["Eins", "Drei"]}')
    told = []
    rows = read(tmp_path, "en.json", "de.json", told=told)
    assert pairs_of(rows) == [("Hello", "Hallo"), ("Bye", "Ade")]
    assert [row["origin"].partition("#")[2] for row in rows] == ["a[id=1].t", "a[id=y].t"]
    assert told[0].skipped == {"in arrays of different lengths": 3}


@pytest.mark.parametrize("is_android", [True, False], ids=["Android", "i18next"])
def test_a_plural_has_the_form_for_most_numbers(tmp_path, is_android):
    """The "other" of Polish is for fractions."""
    forms = {
        "en": {"one": "%d file", "other": "%d files"},
        "pl": {"one": "%d plik", "few": "%d pliki", "many": "%d plików", "other": "%d pliku"},
    }
    for tag, texts in forms.items():
        if is_android:
            items = "".join(f'<item quantity="{form}">{text}</item>' for form, text in texts.items())
            folder = "values" if tag == "en" else f"values-{tag}"
            write(
                tmp_path / "app", f"{folder}/strings.xml", f'<resources><plurals name="f">{items}</plurals></resources>'
            )
        else:
            write(tmp_path / "app", f"{tag}.json", json.dumps({f"f_{form}": text for form, text in texts.items()}))
    told = []
    rows = read(tmp_path, "app", told=told, wanted=Request("en", "pl"))
    assert [(row["en"], row["pl"]) for row in rows] == [("%d file", "%d plik"), ("%d files", "%d plików")]
    assert told[0].skipped == {"plural forms without a source of their own": 2}


def test_the_first_of_several_references_counts(tmp_path):
    segment = '<{0} setid="t"><doc docid="d"><seg id="1">{1}</seg></doc></{0}>'
    write(tmp_path, "a-src.en.sgm", segment.format("srcset", "One"))
    write(tmp_path, "a-ref.de.sgm", segment.format("refset", "Eins") + segment.format("refset", "Ein"))
    assert pairs_of(read(tmp_path, "a-src.en.sgm", "a-ref.de.sgm")) == [("One", "Eins")]


def test_an_encoding_is_declared_by_headers_alone(tmp_path):
    write(tmp_path, "de.po", 'msgid "A charset=latin-1 thing"\nmsgstr "Ein Ding mit charset=latin-1 und Ä"\n')
    assert pairs_of(read(tmp_path, "de.po")) == [("A charset=latin-1 thing", "Ein Ding mit charset=latin-1 und Ä")]


def test_an_origin_has_one_number_sign(tmp_path):
    """Which comes before the place, whatever the folder is called."""
    write(tmp_path / "C#", "de.po", 'msgid "One"\nmsgstr "Eins"\n')
    assert [row["origin"] for row in read(tmp_path, "C#")] == [f"{tmp_path}/C%23/de.po#1"]


def test_test_sets_of_wmt(tmp_path):
    for name, texts in {"src.en": ("A &amp; b", "C"), "ref.de": ("Ä &amp; b", "Z")}.items():
        kind, language = name.split(".")
        segments = "\n".join(f'<seg id="{number}">{text}</seg>' for number, text in enumerate(texts, start=1))
        root = {"src": "srcset", "ref": "refset"}[kind]
        content = f'<{root} setid="t" srclang="any">\n<doc docid="d">\n<p>\n{segments}\n</p></doc></{root}>'
        write(tmp_path / "dev", f"newstest2014-ende-{kind}.{language}.sgm", content)
    rows = read(tmp_path, "dev")
    assert pairs_of(rows) == [("A & b", "Ä & b"), ("C", "Z")]
    assert rows[1]["origin"].endswith("#d 2")


def test_a_zip_of_opus(tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("README", "about it")
        archive.writestr("LICENSE", "CC0")
        archive.writestr("KDE4.de-en.de", "Hallo\nÖffnen\n\n")
        archive.writestr("KDE4.de-en.en", "Hello\nOpen\nx\n")
        archive.writestr("KDE4.de-en.xml", "<cesAlign/>")
    (tmp_path / "de-en.txt.zip").write_bytes(packed.getvalue())
    told = []
    rows = read(tmp_path, "de-en.txt.zip", told=told)
    assert pairs_of(rows) == [("Hello", "Hallo"), ("Open", "Öffnen")]
    assert told[0].skipped == {"without a translation": 1}
    assert rows[0]["origin"].endswith("KDE4.de-en.de#1")


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("deu.txt", "Go.\tGeh.\tCC-BY 2.0 (France) Attribution: x\nHi.\tHallo!\tCC-BY 2.0 y\n", {}),
        ("Sentence pairs in English-German - 2026-01-01.tsv", "\ufeff1\tGo.\t2\tGeh.\n3\tHi.\t4\tHallo!\n", {}),
        ("Sentence pairs in German-English - 2026-01-01.tsv", "1\tGeh.\t2\tGo.\n3\tHallo!\t4\tHi.\n", {}),
        ("table.csv", 'id,English,Deutsch,de_DE\n1,Go.,x,Geh.\n2,Hi.,"x,y",Hallo!\n', {}),
        ("table.tsv", "Go.\tx\tGeh.\nHi.\ty\tHallo!\n", {"columns": (1, 3)}),
        ("table.tsv", "term\tnote\tBegriff\nGo.\tx\tGeh.\nHi.\ty\tHallo!\n", {"columns": ("term", "Begriff")}),
    ],
)
def test_tables_of_text(tmp_path, name, content, options):
    write(tmp_path, name, content)
    assert pairs_of(read(tmp_path, name, wanted=request(**options))) == [("Go.", "Geh."), ("Hi.", "Hallo!")]


def test_a_table_without_columns_for_the_languages(tmp_path):
    write(tmp_path, "table.tsv", "a\tb\nc\td\n")
    with pytest.raises(UserError, match=r"no column for en and de among a, b; add --source-column"):
        read(tmp_path, "table.tsv")


def test_tables_of_text_in_an_archive(tmp_path):
    tables = {
        "a/table.csv": b'English;German\nGo.;"Geh;\nlos."\n',
        "table.tsv.gz": gzip.compress(b"en\tde\nHi.\tHallo!\n"),
        "other.csv": b"a,b\nc,d\n",
    }
    for name, more in {"good.zip": {}, "bad.zip": {"bad.csv": b'en,de\nx,"y\n'}}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for part, content in {**tables, **more}.items():
                archive.writestr(part, content)
    told = []
    rows = read(tmp_path, "good.zip", told=told)
    assert pairs_of(rows) == [("Go.", "Geh; los."), ("Hi.", "Hallo!")]
    assert rows[0]["origin"].endswith("good.zip/a/table.csv#2")
    assert [entry.skipped for entry in told] == [{}, {"tables without a column for each language": 1}, {}]
    with pytest.raises(UserError, match=rf"^{re.escape(str(tmp_path))}/bad\.zip/bad\.csv, line 2: a quotation mark"):
        read(tmp_path, "bad.zip")


def test_the_archive_of_pairs_for_anki(tmp_path):
    with zipfile.ZipFile(tmp_path / "deu-eng.zip", "w") as archive:
        archive.writestr("_about.txt", "** Info **\n")
        archive.writestr("deu.txt", "Go.\tGeh.\tCC-BY 2.0 (France) Attribution: tatoeba.org #1 (a) & #2 (b)\n")
    assert pairs_of(read(tmp_path, "deu-eng.zip")) == [("Go.", "Geh.")]


def test_pairs_for_anki_in_another_language(tmp_path):
    for name in ("fra.txt", "deu.txt", "pairs.txt"):
        write(tmp_path, name, "Go.\tGeh.\tCC-BY 2.0 (France) Attribution: x\n")
    with pytest.raises(UserError, match=r"fra\.txt: by its name, pairs of English and French, not de"):
        read(tmp_path, "fra.txt")
    assert pairs_of(read(tmp_path, "deu.txt", "pairs.txt")) == [("Go.", "Geh.")] * 2
    wanted = request()
    wanted.source, wanted.target = "de-AT", "en"
    assert read(tmp_path, "deu.txt", wanted=wanted)[0]["de-AT"] == "Geh."


@pytest.mark.parametrize("columns", [(1, "German"), ("English", 2)])
def test_a_column_by_number_and_one_by_name(columns):
    with pytest.raises(UserError, match=f"of the columns {columns[0]} and {columns[1]}, one is a number"):
        request(columns=columns)


def test_sheets_without_the_columns_are_told(tmp_path):
    book = openpyxl.Workbook()
    for name, rows in {"terms": [("English", "German"), ("Go.", "Geh.")], "notes": [("a", "b"), ("c", "d")]}.items():
        for row in rows:
            (book[name] if name in book.sheetnames else book.create_sheet(name)).append(row)
    book.save(tmp_path / "book.xlsx")  # also has the empty sheet of a new workbook
    told = []
    assert pairs_of(read(tmp_path, "book.xlsx", told=told)) == [("Go.", "Geh.")]
    assert told[0].skipped == {"tables without a column for each language": 1}


@pytest.mark.parametrize(
    ("names", "columns"), [(("ID", "English", "German"), None), (("ID", "Term", "Begriff"), ("Term", "Begriff"))]
)
def test_a_title_may_be_above_the_names_of_columns(tmp_path, names, columns):
    book = openpyxl.Workbook()
    for row in [("Terms of 2026",), (), ("by the documentation team", "English", None), names, (1, "Go.", "Geh.")]:
        book.active.append(row)
    book.save(tmp_path / "book.xlsx")
    told = []
    rows = read(tmp_path, "book.xlsx", told=told, wanted=request(columns=columns))
    assert pairs_of(rows) == [("Go.", "Geh.")]
    assert rows[0]["origin"].endswith("book.xlsx#5")
    assert not told[0].skipped


def test_a_region_in_the_name_of_a_column(tmp_path):
    book = openpyxl.Workbook()
    for row in [("Glossary",), ("ID", "English (US)", "German"), (1, "Go.", "Geh.")]:
        book.active.append(row)
    book.save(tmp_path / "book.xlsx")
    assert pairs_of(read(tmp_path, "book.xlsx")) == [("Go.", "Geh.")]
    with pytest.raises(UserError, match=r"among ID, English \(US\), German;"):
        read(tmp_path, "book.xlsx", wanted=Request("fr", "it"))


# -- subtitles ---------------------------------------------------------------------------------------------------------


def srt(*cues: tuple[float, float, str]) -> str:
    def stamp(seconds: float) -> str:
        return f"00:{int(seconds) // 60:02}:{int(seconds) % 60:02},{round(seconds * 1000) % 1000:03}"

    return "".join(f"{n}\n{stamp(a)} --> {stamp(b)}\n{text}\n\n" for n, (a, b, text) in enumerate(cues, start=1))


def test_cues_are_aligned_by_time(tmp_path):
    write(
        tmp_path,
        "film.en.srt",
        srt((1, 3, "<i>When it rains</i>"), (3.1, 5, "we stay."), (6, 7, "No."), (7, 8, "Yes."), (20, 21, "Music")),
    )
    write(
        tmp_path,
        "film.de.srt",
        srt((1.2, 3, "Wenn es regnet,"), (3, 5.1, "bleiben wir."), (6, 8, "- Nein.\n- Ja."), (30, 31, "Ende")),
    )
    told = []
    rows = read(tmp_path, "film.en.srt", "film.de.srt", told=told)
    assert pairs_of(rows) == [("When it rains we stay.", "Wenn es regnet, bleiben wir."), ("No. Yes.", "- Nein. - Ja.")]
    assert rows[1]["origin"].endswith("#00:00:06.000")
    assert told[0].skipped == {"without a translation": 1, "without a source": 1}


def test_subtitles_whose_times_differ_are_refused(tmp_path):
    times = [number * 3.7 + (number * number % 7) / 3 for number in range(60)]
    write(tmp_path, "film.en.srt", srt(*((time, time + 1.5, f"Text {time}.") for time in times)))
    write(tmp_path, "film.de.srt", srt(*((time + 12.3, time + 13.8, f"Satz {time}.") for time in times)))
    with pytest.raises(UserError, match=r"the second is 12\.3 seconds late: .*, and 100% would"):
        read(tmp_path, "film.en.srt", "film.de.srt")
    write(tmp_path, "film.de.srt", srt(*((time + 0.3, time + 1.9, f"Satz {time}.") for time in times)))
    assert len(read(tmp_path, "film.en.srt", "film.de.srt")) == 60


@pytest.mark.parametrize("ending", ["srt", "vtt"])
def test_subtitles_of_another_tool(tmp_path, ending):
    pairs = [pair for pair in PAIRS if not set("<{\\@&") & set("".join(pair))]
    expected = [(f"{source}.", f"{target}.") for source, target in pairs]
    assert pairs_of(read(tmp_path, *subtitle_files(tmp_path, pairs, ending))) == expected
