"""TMX, XLIFF, Qt's .ts and WMT's XML: languages, states of segments and tags within them."""

import re

import pytest
from corpora import pairs_of, read, request
from translate.storage import tmx, xliff

from modeling_scratch.errors import UserError

TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"><prop type="x">no text</prop></header><body>{units}</body></tmx>"""
XLIFF = """<?xml version="1.0" encoding="utf-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" {names}>
<file original="a" source-language="{languages[0]}" target-language="{languages[1]}"><header/><body>
{units}
</body></file></xliff>"""
SDL = 'xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0"'
PHRASE = 'xmlns:m="http://www.memsource.com/mxlf/2.0"'


def tmx_of(*units: dict[str, str], encoding: str = "utf-8") -> bytes:
    """A memory of units, which are segments by their languages."""
    variants = (
        "".join(f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in unit.items()) for unit in units
    )
    return TMX.format(encoding=encoding, units="".join(f"<tu>{unit}</tu>\n" for unit in variants)).encode(encoding)


def xliff_of(*units: str, names: str = "", languages: tuple[str, str] = ("en-US", "de-DE")) -> bytes:
    return XLIFF.format(names=names, languages=languages, units="\n".join(units)).encode()


def found(tmp_path, content: bytes, name: str = "memory.tmx", **options):
    """The pairs, and what was skipped."""
    (tmp_path / name).write_bytes(content)
    told = []
    rows = read(tmp_path, name, told=told, wanted=request(**options))
    return pairs_of(rows), dict(told[0].skipped)


def test_a_variant_of_a_language_serves_for_it(tmp_path):
    units = [
        {"en-US": "color", "de-DE": "Farbe"},
        {"EN": "house", "DE": "Haus"},
        {"en-GB": "colour", "en-US": "color", "de-AT": "Farbe"},
        {"en-GB": "grey", "en": "gray", "de-CH": "gross", "de": "groß"},
        {"fr": "maison", "de": "Haus"},
        {"en-GB": "lift", "de": ""},
    ]
    pairs, skipped = found(tmp_path, tmx_of(*units))
    assert pairs == [("color", "Farbe"), ("house", "Haus"), ("color", "Farbe"), ("gray", "groß")]
    assert skipped == {"in other languages": 1, "without a translation": 1}


def test_a_region_that_is_asked_for_does_not_take_another(tmp_path):
    (tmp_path / "memory.tmx").write_bytes(tmx_of({"en-US": "color", "de": "Farbe"}, {"en": "hue", "de": "Ton"}))
    wanted = request()
    wanted.source = "en-GB"
    assert [row["en-GB"] for row in read(tmp_path, "memory.tmx", wanted=wanted)] == ["hue"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "windows-1252"])
def test_a_memory_in_any_encoding_that_it_declares(tmp_path, encoding):
    pairs, _ = found(tmp_path, tmx_of({"en": "Oh, naïve", "de": "Äh, grün"}, encoding=encoding))
    assert pairs == [("Oh, naïve", "Äh, grün")]


INLINE = {
    "en": 'Press <bpt i="1" x="1">&lt;b&gt;</bpt>Save<ept i="1">&lt;/b&gt;</ept>, <ph x="2">%s</ph>.'
    '<ph>&lt;br/&gt;</ph>End<ph x="3">{img}</ph>now <hi>here</hi>',
    "de": '<bpt i="7" x="1">&lt;b&gt;</bpt>Sichern<ept i="7">&lt;/b&gt;</ept> drücken, <ph x="2">%s</ph>.'
    '<ph>&lt;br/&gt;</ph>Ende <ph x="3">{img}</ph><hi>hier</hi>',
}


@pytest.mark.parametrize(
    ("mode", "pair"),
    [
        ("drop", ("Press Save, %s. End{img}now here", "Sichern drücken, %s. Ende {img}hier")),
        (
            "text",
            (
                "Press <b>Save</b>, %s.<br/>End{img}now <hi>here</hi>",
                "<b>Sichern</b> drücken, %s.<br/>Ende {img}<hi>hier</hi>",
            ),
        ),
        (
            "placeholders",
            (
                "Press {1}Save{2}, {3}.{4}End{5}now {6}here{7}",
                "{1}Sichern{2} drücken, {3}.{4}Ende {5}{6}hier{7}",
            ),
        ),
    ],
)
def test_tags_within_segments_of_tmx(tmp_path, mode, pair):
    assert found(tmp_path, tmx_of(INLINE), inline_tags=mode)[0] == [pair]


def test_tags_within_segments_of_xliff(tmp_path):
    unit = (
        '<trans-unit id="1"><source>A <g id="1">big</g><x id="2"/>cat<ph id="3">{n}</ph></source>'
        '<target state="translated">Eine <g id="1">große</g><x id="2"/>Katze<ph id="3">{n}</ph></target></trans-unit>'
    )
    expected = {
        "drop": ("A big cat{n}", "Eine große Katze{n}"),
        "text": ('A <g id="1">big</g><x id="2"/>cat{n}', 'Eine <g id="1">große</g><x id="2"/>Katze{n}'),
        "placeholders": ("A {1}big{2}{3}cat{4}", "Eine {1}große{2}{3}Katze{4}"),
    }
    for mode, pair in expected.items():
        assert found(tmp_path, xliff_of(unit), "a.xlf", inline_tags=mode)[0] == [pair]


def unit_of_xliff(number: int, target: str, more: str = "", attributes: str = "") -> str:
    return f'<trans-unit id="{number}" {attributes}><source>text {number}</source>{target}{more}</trans-unit>'


def test_states_of_xliff(tmp_path):
    states = [
        "",
        "final",
        "signed-off",
        "translated",
        "new",
        "needs-translation",
        "needs-review-translation",
        "needs-l10n",
    ]
    units = [
        unit_of_xliff(number, f"<target{f' state={state!r}' if state else ''}>Text {number}</target>")
        for number, state in enumerate(states)
    ]
    units += [
        unit_of_xliff(8, ""),
        unit_of_xliff(9, "<target/>"),
        unit_of_xliff(10, "<target>Text</target>", attributes='translate="no"'),
        unit_of_xliff(11, "", "<alt-trans><source>x</source><target>y</target></alt-trans>"),
    ]
    pairs, skipped = found(tmp_path, xliff_of(*units), "a.xlf")
    assert pairs == [(f"text {number}", f"Text {number}") for number in range(4)]
    assert skipped == {"that need work": 4, "without a translation": 3, "not to be translated": 1}


def test_segments_of_a_unit_are_pairs(tmp_path):
    unit = """<trans-unit id="5"><source>One. Two. Three.</source>
    <seg-source><mrk mtype="seg" mid="a">One.</mrk> <mrk mtype="seg" mid="b">Two.</mrk>
    <mrk mtype="seg" mid="c">Three.</mrk></seg-source>
    <target><mrk mtype="seg" mid="b">Zwei.</mrk> <mrk mtype="seg" mid="a">Eins.</mrk></target></trans-unit>"""
    pairs, skipped = found(tmp_path, xliff_of(unit), "a.xlf")
    assert pairs == [("One.", "Eins."), ("Two.", "Zwei.")]
    assert skipped == {"without a translation": 1}


def test_a_file_the_other_way_round_and_one_in_other_languages(tmp_path):
    unit = "<trans-unit id='1'><source>Haus</source><target>house</target></trans-unit>"
    assert found(tmp_path, xliff_of(unit, languages=("de", "en-GB")), "a.xlf")[0] == [("house", "Haus")]
    with pytest.raises(ValueError, match=r"no pairs of en and de in .*a.xlf; the files have de, fr-FR; 1 units in"):
        found(tmp_path, xliff_of(unit, languages=("de", "fr-FR")), "a.xlf")


def test_states_of_trados(tmp_path):
    """As Trados writes them: the text in <mrk>, the states after it."""
    states = [
        "Draft",
        "Translated",
        "ApprovedTranslation",
        "ApprovedSignOff",
        "RejectedTranslation",
        "RejectedSignOff",
        "",
    ]
    units = []
    for number, state in enumerate(states):
        conf = f'conf="{state}" origin="interactive"' if state else ""
        units.append(
            f'<trans-unit id="u{number}"><source>text {number}</source>'
            f'<seg-source><mrk mtype="seg" mid="{number}">text {number}</mrk></seg-source>'
            f'<target><mrk mtype="seg" mid="{number}">Text<mrk mtype="x-sdl-deleted"> alt</mrk> {number}</mrk></target>'
            f'<sdl:seg-defs><sdl:seg id="{number}" {conf}/></sdl:seg-defs></trans-unit>'
        )
    pairs, skipped = found(tmp_path, xliff_of(*units, names=SDL), "a.sdlxliff")
    assert pairs == [(f"text {number}", f"Text {number}") for number in (1, 2, 3)]
    assert skipped == {"that need work": 4}


def test_states_of_memoq(tmp_path):
    """Its tags are <ph> elements, whose text describes them."""
    tag = '<ph id="1">&lt;mq:rxt displaytext="b" val="b" /&gt;</ph>'
    states = ("ManuallyConfirmed", "Proofread", "Reviewer1Confirmed", "PreTranslated", "PartiallyEdited", "Rejected")
    units = [
        f'<trans-unit id="{number}" mq:status="{state}"><source xml:space="preserve">text {tag}{number}</source>'
        f'<target xml:space="preserve">Text {tag}{number}</target></trans-unit>'
        for number, state in enumerate(states)
    ]
    units.append('<trans-unit id="9" mq:status="NotStarted"><source>new</source><target></target></trans-unit>')
    pairs, skipped = found(tmp_path, xliff_of(*units, names='xmlns:mq="MQXliff"'), "a.mqxliff")
    assert pairs == [(f"text {number}", f"Text {number}") for number in range(3)]
    assert skipped == {"that need work": 3, "without a translation": 1}


def test_states_of_phrase(tmp_path):
    units = [
        unit_of_xliff(0, "<target>Text {1&gt;0&lt;1}{2}</target>", attributes='m:confirmed="1"'),
        unit_of_xliff(1, "<target>Text 1</target>", attributes='m:confirmed="0"'),
        unit_of_xliff(2, "<target></target>", attributes='m:confirmed="0"'),
        unit_of_xliff(3, "<target>Text {user} 3</target>", attributes='m:confirmed="2" m:id="9"'),
    ]
    pairs, skipped = found(tmp_path, xliff_of(*units, names=PHRASE), "a.mxliff")
    assert pairs == [("text 0", "Text 0"), ("text 3", "Text {user} 3")]
    assert skipped == {"that need work": 1, "without a translation": 1}
    assert found(tmp_path, xliff_of(*units, names=PHRASE), "a.mxliff", inline_tags="text")[0][0][1] == "Text {1>0<1}{2}"


def test_tags_that_stand_for_placeholders_stay(tmp_path):
    """Trados declares them in the header, Phrase at the end of a unit, and memoQ describes them."""
    header = (
        '<header><tag-defs xmlns="http://sdl.com/FileTypes/SdlXliff/1.0"><tag id="5"><ph name="v">%s</ph></tag>'
        '<tag id="6"><ph name="b">&lt;br/&gt;</ph></tag><tag id="7"><ph name="i">&lt;img/&gt;</ph></tag></tag-defs>'
        "</header>"
    )
    unit = '<trans-unit id="1"><source>{}</source><target>{}</target>{}</trans-unit>'
    tags = (
        'Deleted <x id="5"/> files.<x id="6"/>Now<x id="7"/>go.',
        '<x id="5"/> Dateien.<x id="6"/>Jetzt<x id="7"/>los.',
    )
    content = xliff_of(unit.format(*tags, ""), names=SDL).replace(b"<header/>", header.encode())
    assert found(tmp_path, content, "a.sdlxliff")[0] == [("Deleted %s files. Now go.", "%s Dateien. Jetzt los.")]

    marks = ("%d ", "&lt;br/&gt;", "&lt;img/&gt;")
    codes = "".join(f'<m:mark id="{n}"><m:content>{code}</m:content></m:mark>' for n, code in enumerate(marks, start=1))
    tags = "Delete {1}files{2}now{3}here", "{1}Dateien{2}jetzt{3}hier"
    content = xliff_of(unit.format(*tags, f"<m:tunit-metadata>{codes}</m:tunit-metadata>"), names=PHRASE)
    content = content.replace(b'unit id="1"', b'unit id="1" m:confirmed="1"')
    assert found(tmp_path, content, "a.mxliff")[0] == [("Delete %d files now here", "%d Dateien jetzt hier")]

    tag = '<ph id="3">&lt;mq:rxt-req displaytext="x" val="%1$s"&gt;</ph>'
    content = xliff_of(unit.format(f"File {tag} saved", f"Datei {tag} gespeichert", ""), names='xmlns:mq="MQXliff"')
    assert found(tmp_path, content, "a.mqxliff")[0] == [("File %1$s saved", "Datei %1$s gespeichert")]


def test_a_placeholder_of_angular(tmp_path):
    tag = '<ph id="0" equiv="INTERPOLATION" disp="{{ name }}"/>'
    content = (
        '<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de"><file id="f">'
        f'<unit id="1"><segment><source>Hi {tag}!</source><target>Hallo {tag}!</target></segment></unit></file></xliff>'
    )
    assert found(tmp_path, content.encode(), "a.xlf")[0] == [("Hi {{ name }}!", "Hallo {{ name }}!")]


XLIFF_2 = """<xliff version="2.1" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de"><file id="f">
<unit id="1"><originalData><data id="d1">%s</data><data id="d2">&lt;br/></data></originalData>
 <segment id="s1" state="final">
  <source>It <pc id="1">is</pc> <ph id="2" dataRef="d1"/><ph id="3" dataRef="d2"/>now</source>
  <target>Es <pc id="1">ist</pc> <ph id="2" dataRef="d1"/><ph id="3" dataRef="d2"/>jetzt</target></segment>
 <ignorable><source> </source></ignorable>
 <segment><source>So <mrk id="m" type="term">what</mrk></source><target>Na und</target></segment>
 <segment state="initial"><source>New</source><target>New</target></segment>
 <segment state="initial"><source>Other</source></segment></unit>
<unit id="2" translate="no"><segment><source>SKU</source><target>SKU</target></segment></unit>
</file></xliff>"""


def test_xliff_2(tmp_path):
    pairs, skipped = found(tmp_path, XLIFF_2.encode(), "a.xlf")
    assert pairs == [("It is %s now", "Es ist %s jetzt"), ("So what", "Na und")]
    assert skipped == {"that need work": 1, "without a translation": 1, "not to be translated": 1}
    pairs, _ = found(tmp_path, XLIFF_2.encode(), "a.xlf", inline_tags="text")
    assert pairs[0] == ('It <pc id="1">is</pc> %s<br/>now', 'Es <pc id="1">ist</pc> %s<br/>jetzt')


QT = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="de_DE"><context><name>Window</name>
<message><location filename="a.cpp" line="1"/><source>&amp;File</source><comment>menu</comment>
<translation>&amp;Datei</translation></message>
<message><source>Open</source><translation type="unfinished">Offen</translation></message>
<message><source>Close</source><translation type="unfinished"></translation></message>
<message><source>Old</source><translation type="vanished">Alt</translation></message>
<message><source>Older</source><translation type="obsolete">Älter</translation></message>
<message numerus="yes"><source>%n files</source>
<translation><numerusform>%n Datei</numerusform><numerusform>%n Dateien</numerusform></translation></message>
<message><source>Name<byte value="x9"/>Size</source>
<translation><lengthvariant>Name: Größe</lengthvariant><lengthvariant>N</lengthvariant></translation></message>
</context></TS>"""


def test_states_of_qt(tmp_path):
    pairs, skipped = found(tmp_path, QT.encode(), "app_de.ts")
    assert pairs == [("&File", "&Datei"), ("Name\tSize", "Name: Größe")]
    assert skipped == {
        "that need work": 1,
        "without a translation": 1,
        "obsolete": 2,
        "plural forms without a source of their own": 1,
    }


def test_the_path_names_the_target_language_of_a_file_that_does_not(tmp_path):
    files = {
        "ts": QT.replace(' language="de_DE"', ""),
        "xlf": xliff_of(unit_of_xliff(1, "<target>Hund</target>")).decode().replace(' target-language="de-DE"', ""),
    }
    for ending, text in files.items():
        for name in (f"app_de.{ending}", f"app.{ending}", f"messages.de-AT.{ending}"):
            assert found(tmp_path, text.encode(), name)[0]
        for name in (f"app_fr.{ending}", f"messages.pt-BR.{ending}", f"messages.en.{ending}"):
            with pytest.raises(UserError, match=r"units? in other languages"):
                found(tmp_path, text.encode(), name)


WMT = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="newstest2021"><collection id="general"><doc origlang="en" id="d1">
<src lang="en"><p><seg id="1">One.</seg><seg id="2">Two &amp; a half.</seg></p><p><seg id="3">Three.</seg></p></src>
<ref lang="de" translator="A"><p><seg id="1">Eins.</seg><seg id="2">Zweieinhalb.</seg></p></ref>
<ref lang="de" translator="B"><p><seg id="1">1.</seg></p></ref>
<hyp system="x" language="de"><p><seg id="1">bad</seg></p></hyp></doc></collection></dataset>"""


def test_xml_of_wmt(tmp_path):
    pairs, skipped = found(tmp_path, WMT.encode(), "newstest2021.en-de.all.xml")
    assert pairs == [("One.", "Eins."), ("Two & a half.", "Zweieinhalb.")]
    assert skipped == {"without a translation": 1}


def test_what_other_readers_find_in_the_same_files(tmp_path):
    """The toolkit's own readers, in files that are not its own."""
    memory = tmx_of({"en": "a &lt; b", "de": "a &gt; b"}, {"en": "x\n  y", "de": "ä"})
    pairs, _ = found(tmp_path, memory)
    units = tmx.tmxfile.parsestring(memory).units
    assert pairs == [(re.sub(r"\s+", " ", unit.source), unit.target) for unit in units]
    content = xliff_of(*(unit_of_xliff(number, f"<target>Text {number}</target>") for number in range(3)))
    assert found(tmp_path, content, "a.xlf")[0] == [
        (u.source, u.target) for u in xliff.xlifffile.parsestring(content).units
    ]
