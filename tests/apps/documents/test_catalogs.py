"""Catalogs: their messages are translated, and everything else stays; other libraries read the same structure."""

import json
import logging
import re
import sys

import javaproperties
import openstep_plist
import polib
import pytest
from conftest import ROOT
from lxml import etree
from stand_ins import always, backwards, changed

sys.path.insert(0, str(ROOT / "benchmarks"))
from readers import catalog

from modeling_scratch.apps.documents.document import translate_document
from modeling_scratch.errors import UserError

JSON = r"""{
  "@@locale": "en",
  "title": "The old <b>café</b>",  "n": 1e400, "big": 123456789012345678901,
  "list": ["One", ["Two & three", {"a": "x/y \"q\"\n"}], null, true, []],
  "files": "{count, plural, offset:1 =0 {no files} one {# file} other {# <b>files</b> in {folder}}}",
  "@files": {"description": "A count", "placeholders": {"count": {"type": "int"}}},
  "who": "{g, select, male {{n, plural, one {his file} other {his # files}}} other {theirs}}",
  "id": "btn-primary", "color": "#ff0000", "date": "2026-01-31", "file": "icon.png", "word": "fooBar",
  "i18next": "Hello {{name}}, $t(key) %{x}", "e": "", "space": "  a  b  ", "amp": "Terms &amp; more",
  "same": "One", "same": "Two", "pipe": "no car | one car"
}
"""
PROPERTIES = r"""# A comment \
! Another
greeting = Hello, {0}! It''s {1}.
plain=It's fine
long : one two three \
    four five \
	six
joined=super\
  man flies
key\ with\:colon caf\u00e9 \ud83d\ude00 fun
empty=
novalue
choice={0,choice,0#no files|1#one file|1<{0} files}
tab=a\tb\nnext
host=server.example
last=line"""
ANDROID = r"""<?xml version="1.0" encoding="utf-8"?>
<!-- A comment -->
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    <string name="a">It\'s the <b>old</b> man\u2019s &amp; "my   dog"</string>
    <string name="b" translatable="false">no</string>
    <string name="c">Hi <xliff:g id="n" example="Bob">%1$s</xliff:g>, you have %2$d\n\nNew line</string>
    <string name="d">@string/app</string><string name="ds">?attr/x</string>
    <string name="e"><![CDATA[Some <b>html</b> it\'s & text]]></string>
    <string name="f">Wrapped
        text</string>
    <string name="g">"Quoted it's"</string>
    <string name="h">\@handle</string>
    <string name="i"/>
    <string-array name="arr"><item>One</item><!-- c --><item>Two</item></string-array>
    <string-array name="no" translatable="false"><item>One</item></string-array>
    <integer-array name="int"><item>1</item></integer-array>
    <plurals name="p"><item quantity="one">%d file</item><item quantity="other">%d files</item></plurals>
    <string name="esc">&lt;a href=\"x\"&gt;link&lt;/a&gt;</string>
    <color name="x">#fff</color>
</resources>
"""
APPLE = r"""/* A comment; "x" = "y"; */
"key" = "Hello \"World\", %@!\nNext line";
// Another
CFBundleName = "App name";
"u"="caf\U00e9 %1$@ of %2$lld" ;
'single' = 'It\'s a dog';
"only";
value = YES;
"multi" = "First
Second";
"""
XLIFF_1 = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="en" datatype="plaintext" original="x">
    <body>
      <trans-unit id="a">
        <source>Give <x id="START_BOLD_TEXT"/>the child<x id="CLOSE_BOLD_TEXT"/> &amp; <x id="INTERPOLATION"/>.</source>
        <note priority="1">A note</note>
      </trans-unit>
      <trans-unit id="b"><source>Done</source><target state="final">Fertig</target></trans-unit>
      <group translate="no"><trans-unit id="c"><source>No</source></trans-unit></group>
      <trans-unit id="d"><source>Yes</source><target state="new"/>
        <alt-trans><source>x</source><target>y</target></alt-trans></trans-unit>
      <trans-unit id="e"><source>{VAR, plural, =0 {just now} other {<x id="I"/> minutes}}</source></trans-unit>
      <trans-unit id="f"><source>One. Two.</source><seg-source><mrk mid="1" mtype="seg">One.</mrk> <mrk mid="2" \
mtype="seg">Two.</mrk></seg-source></trans-unit>
      <trans-unit id="g"><source>A <g id="1">red <ph id="2">%s</ph></g> <bpt id="3">&lt;i&gt;</bpt>dog<ept id="3">\
&lt;/i&gt;</ept> <mrk mtype="protected">ACME</mrk></source></trans-unit>
      <trans-unit id="h" xml:space="preserve"><source>Line one.
Line two.</source></trans-unit>
      <trans-unit id="i"><source></source></trans-unit>
      <trans-unit id="j"><source><![CDATA[A <b>dog</b> & cat]]></source></trans-unit>
    </body>
  </file>
</xliff>
"""
TARGETS_1 = [
    'GIVE <x id="START_BOLD_TEXT"/>THE CHILD<x id="CLOSE_BOLD_TEXT"/> &amp; <x id="INTERPOLATION"/>.',
    "YES",
    '{VAR, plural, =0 {JUST NOW} other {<x id="I"/> MINUTES}}',
    '<mrk mid="1" mtype="seg">ONE.</mrk> <mrk mid="2" mtype="seg">TWO.</mrk>',
    'A <g id="1">RED <ph id="2">%s</ph></g> <bpt id="3">&lt;i&gt;</bpt>DOG<ept id="3">&lt;/i&gt;</ept> '
    '<mrk mtype="protected">ACME</mrk>',
    "LINE ONE.\nLINE TWO.",
    "A &lt;b>DOG&lt;/b> &amp; CAT",
]
XLIFF_2 = """<x:xliff version="2.0" xmlns:x="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="">
 <x:file id="f1">
  <x:unit id="1">
   <x:originalData><x:data id="d1">&lt;b&gt;</x:data></x:originalData>
   <x:segment>
   <x:source>A <x:pc id="1" dataRefStart="d1">big</x:pc> <x:sc id="2"/>cat<x:ec startRef="2"/> <x:ph id="3"/></x:source>
   </x:segment>
   <x:ignorable><x:source> </x:source></x:ignorable>
   <x:segment id="s2" state="initial"><x:source>A <x:mrk id="m1" translate="no">ACME</x:mrk> cat</x:source></x:segment>
   <x:segment id="s3" state="final"><x:source>Yes</x:source><x:target>Ja</x:target></x:segment>
  </x:unit>
  <x:unit id="2" translate="no"><x:segment><x:source>No</x:source></x:segment></x:unit>
 </x:file>
</x:xliff>
"""
TARGETS_2 = [
    'A <x:pc id="1" dataRefStart="d1">BIG</x:pc> <x:sc id="2"/>CAT<x:ec startRef="2"/> <x:ph id="3"/>',
    'A <x:mrk id="m1" translate="no">ACME</x:mrk> CAT',
]
FILES = {"json": JSON, "properties": PROPERTIES, "android": ANDROID, "apple": APPLE, "xliff": XLIFF_1}


def capitals(text: str, format: str, target: str | None = "de") -> str:
    return translate_document(text, format, _in_capitals, target=target)


def _in_capitals(paragraphs):
    return [always(paragraph.upper())([paragraph])[0] for paragraph in paragraphs]


# -- what is translated, and what stays --------------------------------------------------------------------------------


def test_json_values_are_translated():
    found = json.loads(capitals(JSON, "json", "pt-BR"), parse_float=str)
    assert found == json.loads(JSON, parse_float=str) | {
        "@@locale": "pt_BR",
        "title": "THE OLD <b>CAFÉ</b>",
        "list": ["ONE", ["TWO & THREE", {"a": 'X/Y "Q"\n'}], None, True, []],
        "files": "{count, plural, offset:1 =0 {NO FILES} one {# FILE} other {# <b>FILES</b> IN {folder}}}",
        "who": "{g, select, male {{n, plural, one {HIS FILE} other {HIS # FILES}}} other {THEIRS}}",
        "i18next": "HELLO {{name}}, $t(key) %{x}",
        "space": "  A  B  ",
        "amp": "TERMS &amp; MORE",
        "same": "TWO",
        "pipe": "NO CAR | ONE CAR",
    }


def test_only_messages_of_browser_extensions_are_translated():
    text = '{"a": {"message": "A $X$ dog", "description": "No"}, "b": {"message": "Yes"}}'
    assert capitals(text, "json") == text.replace("A $X$ dog", "A $X$ DOG").replace("Yes", "YES")
    other = '{"a": {"message": "A dog", "title": "Yes"}, "b": "Yes"}'
    assert capitals(other, "json") == other.replace("A dog", "A DOG").replace("Yes", "YES")


def test_messages_of_browser_extensions_keep_their_placeholders():
    text = json.dumps(
        {
            "$schema": "https://example.org/x",
            "a": {
                "message": "The $MAN$ of $town_1$ gives $1 dogs and $2 for $$9. $$$",
                "description": "A dog",
                "placeholders": {"man": {"content": "$1", "example": "A dog"}},
            },
        }
    )
    expected = "$$9. FOR AND $2 DOGS GIVES $1 OF $town_1$ THE $MAN$ $$$"
    assert json.loads(translate_document(text, "json", backwards))["a"]["message"] == expected
    found, read = changed(text, "json", lambda _: "$9 for the dogs")
    assert read == ["The of gives dogs and for $9."]
    assert json.loads(found)["a"]["message"] == "$$9 $MAN$ for $town_1$ $1 the $2 dogs $$$"
    assert re.sub(r'"message": "[^"]*"', "", found) == re.sub(r'"message": "[^"]*"', "", text)


def test_only_default_messages_of_formatjs_are_translated():
    for text in (
        '{"a": {"id": "dog", "defaultMessage": "A dog", "description": "cat"}}',
        '[{"id": "dog", "defaultMessage": "A dog", "description": "cat"}]',
    ):
        assert capitals(text, "json") == text.replace("A dog", "A DOG")


ANGULAR = """{
  "locale": "en",
  "translations": {
    "1": "{$START_BOLD_TEXT}Old dogs{$CLOSE_BOLD_TEXT} see {$PH}.",
    "2": "{$START_PARAGRAPH}One.{$CLOSE_PARAGRAPH}{$START_PARAGRAPH_1}Two{$LINE_BREAK}three{$CLOSE_PARAGRAPH}",
    "3": "{VAR_PLURAL, plural, =1 {one dog} other {{INTERPOLATION} dogs}}",
    "4": "See {$START_TAG_SPAN}a dog{$CLOSE_TAG_SPAN} or {$START_TAG_SPAN_1}cats{$CLOSE_TAG_SPAN}"
  }
}"""


def test_the_tags_and_the_language_of_angular():
    """As its parsers read them (@angular/localize 21.2): all messages and placeholders, closing tags after opening."""
    assert json.loads(translate_document(ANGULAR, "json", backwards, target="pt_BR")) == {
        "locale": "pt-BR",
        "translations": {
            "1": "SEE {$PH}. {$START_BOLD_TEXT}DOGS OLD{$CLOSE_BOLD_TEXT}",
            "2": "{$START_PARAGRAPH}ONE.{$CLOSE_PARAGRAPH}{$START_PARAGRAPH_1}TWO{$LINE_BREAK}THREE{$CLOSE_PARAGRAPH}",
            "3": "{VAR_PLURAL, plural, =1 {DOG ONE} other {{INTERPOLATION} DOGS}}",
            "4": "{$START_TAG_SPAN_1}CATS{$CLOSE_TAG_SPAN} OR {$START_TAG_SPAN}DOG A{$CLOSE_TAG_SPAN} SEE",
        },
    }


@pytest.mark.parametrize(
    ("old", "target", "new"),
    [("en", "de", "de"), ("de-AT", "de", "de-AT"), ("pt", "pt-BR", "pt-BR"), ("en", None, "en")],
)
def test_a_file_in_a_country_of_the_language_keeps_its_name(old, target, new):
    text = json.dumps({"locale": old, "translations": {}})
    assert json.loads(translate_document(text, "json", always("x"), target=target))["locale"] == new


JED = r"""{"generator": "a program", "domain": "messages", "locale_data": {"messages": {
"": {"domain": "messages", "lang": "en", "plural-forms": "nplurals=2; plural=(n != 1);", "other": "A dog"},
"menu\u0004A dog": ["A dog"], "%d dog": ["%d dog", "%d dogs"],
"One dog": [
  "One dog",
  "%d dogs"
]}, "x": "A dog"}}"""


@pytest.mark.parametrize(
    ("target", "several", "one"),
    [
        ("de", ["%d DOG", "%d DOGS"], ["ONE DOG", "%d DOGS"]),
        ("ru", ["%d DOG", "%d DOGS", "%d DOGS"], ["%d DOGS"] * 3),  # the first form is also for 21
        ("fr", ["%d DOG", "%d DOGS"], ["%d DOGS"] * 2),  # the first form is also for 0
        ("ja", ["%d DOGS"], ["%d DOGS"]),
        (None, ["%d DOG", "%d DOGS"], ["ONE DOG", "%d DOGS"]),
    ],
)
def test_jed_gets_the_plural_forms_of_the_language(target, several, one):
    found, before = json.loads(capitals(JED, "json", target)), json.loads(JED)
    header, old = found["locale_data"]["messages"].pop(""), before["locale_data"]["messages"].pop("")
    assert header["lang"] == (target or "en")
    assert header["plural-forms"].startswith(f"nplurals={len(several)}; plural=")
    assert header | {"lang": "", "plural-forms": ""} == old | {"lang": "", "plural-forms": ""}
    assert found["locale_data"]["messages"] == {"menu\x04A dog": ["A DOG"], "%d dog": several, "One dog": one}
    before["locale_data"]["messages"] = found["locale_data"]["messages"]
    assert found == before


@pytest.mark.parametrize("texts", [["This dog", "These dogs"], ["A dog of {name}", "Dogs of {name}"]])
def test_jed_stays_as_it_is_where_a_form_would_say_a_wrong_number(texts, caplog):
    text = re.sub(r'(?<="One dog": )\[[^]]*\]', json.dumps(texts), JED)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        messages = json.loads(capitals(text, "json", "ru"))["locale_data"]["messages"]
    assert (messages["%d dog"], messages["One dog"]) == (["%d DOG", "%d DOGS", "%d DOGS"], texts)
    (told,) = caplog.messages
    assert re.match("line [0-9]+: left as it is: ", told)


def test_jed_keeps_plural_forms_that_its_language_has():
    text = JED.replace('"en"', '"ru_UA"').replace("nplurals=2; plural=(n != 1);", "nplurals=1; plural=0;")
    messages = json.loads(capitals(text, "json", "ru"))["locale_data"]["messages"]
    assert (messages[""]["lang"], messages[""]["plural-forms"]) == ("ru_UA", "nplurals=1; plural=0;")
    assert messages["%d dog"] == ["%d DOGS"]


def test_properties_values_are_translated():
    assert capitals(PROPERTIES, "properties") == (
        PROPERTIES.replace("Hello, {0}! It''s {1}.", "HELLO, {0}! IT''S {1}.")
        .replace("It's fine", "IT'S FINE")
        .replace("one two three", "ONE TWO THREE")
        .replace("four five", "FOUR FIVE")
        .replace("six", "SIX")
        .replace("super\\\n  man flies", "SUPERMAN FLIES")
        .replace(r"caf\u00e9 \ud83d\ude00 fun", r"CAF\u00c9 \ud83d\ude00 FUN")
        .replace("no files|1#one file|1<{0} files", "NO FILES|1#ONE FILE|1<{0} FILES")
        .replace(r"=a\tb\nnext", r"=A\tB\nNEXT")
        .replace("=line", "=LINE")
    )


def test_items_of_android_that_are_strings_are_translated():
    file = """<resources><item type="string" name="a">A <b>dog</b></item><item type="dimen" name="b">A dog</item>
<item type="string" name="c" translatable="false">A dog</item><item type="id" name="d"/><item name="e">A dog</item>
<item type="string" name="f">@string/a</item><array name="g"><item>A dog</item></array></resources>"""
    assert capitals(file, "android") == file.replace("A <b>dog</b>", "A <b>DOG</b>")


def test_android_strings_are_translated():
    assert capitals(ANDROID, "android") == (
        ANDROID.replace(r"It\'s the <b>old</b> man\u2019s", "IT\\'S THE <b>OLD</b> MAN\N{RIGHT SINGLE QUOTATION MARK}S")
        .replace("my   dog", "MY   DOG")
        .replace("Hi <", "HI <")
        .replace(r", you have %2$d\n\nNew line", r", YOU HAVE %2$d\n\nNEW LINE")
        .replace(r"Some <b>html</b> it\'s & text", r"SOME <b>HTML</b> IT\'S & TEXT")
        .replace("Wrapped\n        text", "WRAPPED\n        TEXT")
        .replace("Quoted it's", r"QUOTED IT\'S")
        .replace('name="arr"><item>One</item><!-- c --><item>Two', 'name="arr"><item>ONE</item><!-- c --><item>TWO')
        .replace("%d file<", "%d FILE<")
        .replace("%d files", "%d FILES")
        .replace("link", "LINK")
    )


def test_apple_strings_are_translated():
    assert capitals(APPLE, "apple") == (
        APPLE.replace(r"Hello \"World\", %@!\nNext line", r"HELLO \"WORLD\", %@!\nNEXT LINE")
        .replace("App name", "APP NAME")
        .replace(r"caf\U00e9 %1$@ of", "CAFÉ %1$@ OF")
        .replace(r"It\'s a dog", r"IT\'S A DOG")
        .replace("First\nSecond", "FIRST\nSECOND")
    )
    content = APPLE.encode("utf-16")
    assert translate_document(content, "apple", _in_capitals) == capitals(APPLE, "apple").encode("utf-16")


def test_xliff_1_sources_without_a_target_get_one():
    found = capitals(XLIFF_1, "xliff")
    state = ' state="needs-review-translation">'
    assert re.findall(rf"<target{state}((?s:.*?))</target>", found) == TARGETS_1
    assert "</source>\n        <target state" in found
    without = re.sub(rf"(\n +)?<target{state}(?s:.*?)</target>", "", found)
    assert without == XLIFF_1.replace('<target state="new"/>', "").replace(
        'original="x"', 'original="x" target-language="de"'
    )
    assert [element.getparent().get("id") for element in etree.fromstring(found.encode()).iter("{*}target")] == [
        "a",
        "b",
        "d",
        None,
        *"efghj",
    ]  # in order, as before


def test_white_space_within_quotation_marks_of_android_stays():
    file = '<resources><string name="a">" and "</string><string name="b">"A cat. "</string></resources>'
    assert capitals(file, "android") == file.replace("and", "AND").replace("A cat", "A CAT")


@pytest.mark.parametrize(
    ("target", "is_filled"),
    [
        ('<target state="new">One.</target>', True),
        ('<target state="needs-translation">One.</target>', True),
        ('<target><mrk mtype="seg" mid="0"/></target>', True),
        ('<target state="translated">One.</target>', False),
        ("<target>One.</target>", False),
    ],
)
def test_xliff_1_targets_that_are_not_translated_yet_are_filled(target, is_filled):
    unit = f'<trans-unit id="1"><source>One.</source>{target}</trans-unit>'
    file = f'<xliff version="1.2"><file target-language="de"><body>{unit}</body></file></xliff>'
    assert ("ONE." in capitals(file, "xliff")) == is_filled


def test_xliff_2_segments_without_a_target_get_one():
    found = capitals(XLIFF_2, "xliff", "pt_BR")
    assert re.findall(r"<x:target>(.*?)</x:target>", found) == [*TARGETS_2, "Ja"]
    segments = etree.fromstring(found).iter("{*}segment")
    assert [segment.get("state") for segment in segments] == ["translated", "translated", "final", None]
    assert re.sub(r"(\n +)?<x:target>[A-Z].{5,}?</x:target>", "", found) == (
        XLIFF_2.replace('trgLang=""', 'trgLang="pt-BR"')
        .replace("<x:segment>\n", '<x:segment state="translated">\n')
        .replace('"initial"', '"translated"')
    )


def test_xliff_2_segments_lose_the_sub_state_of_their_old_state():
    """Else it would be that of the new one."""
    segment = "<segment id='s' state='initial' subState='a:b'><source>A dog</source></segment>"
    file = f'<xliff version="2.1" trgLang="de"><file><unit>{segment}</unit></file></xliff>'
    assert "<segment id='s' state=\"translated\"><source>" in capitals(file, "xliff")


SEGMENTED = """<xliff version="1.2"><file target-language="de-DE"><body><trans-unit><source>One. Two. Three.</source>
<seg-source><g id="1"><mrk mtype="seg" mid="a">One.</mrk> <mrk mtype="seg" mid="b">Two.</mrk></g> <mrk mtype="seg" \
mid="c">Three.</mrk></seg-source>
<target state="final"><g id="1"><mrk mtype="seg" mid="a">Eins.</mrk> <mrk mtype="seg" mid="b"/></g> <mrk mtype="seg" \
mid="c"><x id="2"/></mrk></target></trans-unit></body></file></xliff>"""


def test_xliff_1_segments_without_a_translation_get_one():
    assert capitals(SEGMENTED, "xliff") == SEGMENTED.replace('mid="b"/>', 'mid="b">TWO.</mrk>').replace(
        '<x id="2"/>', "THREE."
    ).replace('"final"', '"needs-review-translation"')


def test_segments_that_targets_do_not_have_are_told_in_one_line(caplog):
    file = SEGMENTED.replace('<mrk mtype="seg" mid="b"/>', "").replace('<x id="2"/>', "Drei.")
    assert capitals(file, "xliff") == file
    told = "segments that are missing in their targets stay without a translation"
    assert caplog.messages == [f"{told}: 1, the first in line 2"]
    caplog.clear()
    unit = re.search("<trans-unit>.*</trans-unit>", file, re.DOTALL)[0]
    file = file.replace(unit, f"{unit}\n" * 1_234)
    assert capitals(file, "xliff") == file
    assert caplog.messages == [f"{told}: 1,234, the first in line 2"]
    caplog.clear()
    file = re.sub("<target.*?</target>", "<target>Eins. Zwei. Drei.</target>", SEGMENTED, flags=re.DOTALL)
    assert capitals(file, "xliff") == file
    assert caplog.messages == []


def test_segments_without_numbers_are_filled_by_their_places():
    file = re.sub(' mid="."', "", SEGMENTED)
    assert '<mrk mtype="seg">TWO.</mrk></g> <mrk mtype="seg">THREE.</mrk></target>' in capitals(file, "xliff")


@pytest.mark.parametrize("version", [1, 2])
def test_xliff_for_another_language_is_not_filled(version):
    file = XLIFF_2.replace('trgLang=""', 'trgLang="@@"')
    if version == 1:
        file = XLIFF_1.replace("<file ", '<file target-language="@@" ')
    for stated, target in (
        ("de-AT", "de"),
        ("de", "deu_Latn"),
        ("zh-Hant-TW", "cmn"),
        ("no", "nb"),
        ("fr", None),
        ("x-klingon", "de"),
    ):
        found = capitals(file.replace("@@", stated), "xliff", target)
        assert "YES" in found or "BIG" in found
        assert f'"{stated}"' in found
    for stated, target in (("fr", "de"), ("nn", "nb")):
        message = f"line 5: the file is for translations into {stated}, but the model"
        with pytest.raises(UserError) as error:
            capitals(file.replace("@@", stated), "xliff", target)
        assert str(error.value).startswith(f"{message} translates into {target}; use")


@pytest.mark.parametrize(
    ("source", "read", "target"),
    [
        ('One<ph id="1" subType="xlf:lb"/>two', ["One", "two"], 'ONE<ph id="1" subType="xlf:lb"/>TWO'),
        ('One<ph id="1" dataRef="d1"/>two', ["One", "two"], 'ONE<ph id="1" dataRef="d1"/>TWO'),
        ('One<ph id="1" equiv="LINE_BREAK"/>two', ["One", "two"], 'ONE<ph id="1" equiv="LINE_BREAK"/>TWO'),
        ('One<cp hex="000B"/>two', ["One", "two"], 'ONE<cp hex="000B"/>TWO'),
        (
            '<pc id="1" dispStart="&lt;p>">One</pc><pc id="2" dispStart="&lt;p>">two</pc>',
            ["One", "two"],
            '<pc id="1" dispStart="&lt;p>">ONE</pc><pc id="2" dispStart="&lt;p>">TWO</pc>',
        ),
        ('One<sc id="1" dataRef="d1"/>two', ["One", "two"], 'ONE<sc id="1" dataRef="d1"/>TWO'),
        # Code that may be anything
        ('One<ph id="1"/>two', ["One two"], 'ONE<ph id="1"/> TWO'),
        ('One<cp hex="0001"/><ph id="1"/>two', ["One two"], 'ONE<cp hex="0001"/><ph id="1"/> TWO'),
        ('One <ph id="1"/>two', ["One two"], 'ONE <ph id="1"/>TWO'),
        ('dog<ph id="1"/>, 5<ph id="2"/>m', ["dog, 5m"], 'DOG<ph id="1"/>, 5M<ph id="2"/>'),
        ('\u65e5<ph id="1"/>\u672c', ["\u65e5\u672c"], None),
        # Spans may end within a word
        ('One<sc id="1"/>two<ec startRef="1"/> cat', ["Onetwo cat"], None),
        ("One\ntwo\n  cat", ["One two cat"], "ONE\nTWO\n  CAT"),
        ("One&#10;two", ["One two"], "ONE&#10;TWO"),
    ],
)
def test_code_and_line_ends_of_xliff_2_do_not_join_words(source, read, target):
    data = '<originalData><data id="d1">&lt;br/&gt;</data></originalData>'
    file = f'<xliff version="2.0"><file><unit>{data}<segment><source>{source}</source></segment></unit></file></xliff>'
    assert changed(file, "xliff")[1] == read
    if target:
        assert f"<target>{target}</target>" in capitals(file, "xliff")


@pytest.mark.parametrize(
    "code",
    [
        '<x id="1" ctype="lb"/>',
        '<ph id="1">&lt;br/></ph>',
        '<ph id="1">\\n</ph>',
        '<x id="1" equiv-text="&lt;hr/>"/>',
        '<x id="CLOSE_PARAGRAPH"/><x id="START_PARAGRAPH_1"/>',
        '<ept id="1">&lt;/p></ept><bpt id="2">&lt;p></bpt>',
    ],
)
def test_line_ends_and_blocks_of_xliff_1_end_sentences(code):
    file = f'<xliff version="1.2"><file><trans-unit><source>One{code}two</source></trans-unit></file></xliff>'
    assert changed(file, "xliff")[1] == ["One", "two"]
    assert f">ONE{code}TWO</target>" in capitals(file, "xliff")


def test_xliff_of_xcode_keeps_its_placeholder():
    unit = "<trans-unit><source>%arg old dogs</source></trans-unit>"
    file = f'<xliff version="1.2"><file original="a.xcstrings"><body>{unit}</body></file></xliff>'
    assert changed(file, "xliff")[1] == ["old dogs"]


def test_xliff_of_qt_keeps_its_placeholders():
    text = "%n old dogs, %L1 cats &amp;&amp; %1 mice"  # from lconvert of Qt 5.15
    unit = f'<trans-unit><source xml:space="preserve">{text}</source></trans-unit>'
    file = f'<xliff version="1.2" xmlns:trolltech="urn:x"><file><body>{unit}</body></file></xliff>'
    assert changed(file, "xliff")[1] == ["old dogs, cats & mice"]
    assert ">%n OLD DOGS, %L1 CATS &amp;&amp; %1 MICE</target>" in capitals(file, "xliff")


@pytest.mark.parametrize("format", ["json", "properties", "android", "apple"])
def test_a_file_whose_texts_stay_the_same_stays_the_same(format):
    """Except for escapes that are not needed."""
    text = (
        FILES[format]
        .replace("\\\n  man", "man")
        .replace(r"\u2019", "\N{RIGHT SINGLE QUOTATION MARK}")
        .replace(r"\U00e9", "é")
        .replace("it's\"", "it\\'s\"")
    )
    assert changed(text, format)[0] == text


def test_a_file_that_is_translated_stays_as_it_is():
    done = capitals(XLIFF_1, "xliff")
    assert translate_document(done, "xliff", always("x"), target="fr") == done


# -- as other libraries read them --------------------------------------------------------------------------------------

SPECIAL = """Ä "quoted" \\ it's <5 & 7 é 😀 = : # %"""


def _lines(text: str) -> list[str]:
    return [re.sub(r"\\(.)", r"\1", string.text) for string in etree.fromstring(text.encode()).iter("string")]


def _targets(text: str) -> list[str]:
    return [element.text for element in etree.fromstring(text.encode()).iter("target")]


READ = {
    "po": lambda text: [entry.msgstr for entry in polib.pofile("\n" + text)],
    "json": json.loads,
    "properties": lambda text: [javaproperties.loads(text)["a"]],
    "android": _lines,
    "apple": lambda text: [openstep_plist.loads(text)["a"]],
    "xliff": _targets,
}


@pytest.mark.parametrize("format", READ)
def test_other_libraries_read_what_was_written(format):
    found = translate_document(catalog(format, ["A dog."]), format, always(SPECIAL))
    assert READ[format](found) == [SPECIAL]
    assert READ[format](catalog(format, ["x"], [SPECIAL])) == [SPECIAL]


def test_a_file_of_ascii_stays_one_if_it_has_escapes_or_might_be_latin_1():
    assert translate_document('["caf\\u00e9"]', "json", always("Ä 😀")) == r'["\u00c4 \ud83d\ude00"]'
    assert translate_document('["dog"]', "json", always("Ä 😀")) == '["Ä 😀"]'
    assert translate_document("a=dog\n", "properties", always("Ä 😀")) == "a=\\u00c4 \\ud83d\\ude00\n"
    assert translate_document("a=dog é\n", "properties", always("Ä 😀")) == "a=Ä 😀\n"


def _json_structure(text: str):
    def shape(value):
        return sorted(value) if isinstance(value, dict) else ""

    return json.loads(text, object_pairs_hook=lambda pairs: [(key, shape(value)) for key, value in pairs])


def _xml_structure(text: str):
    tree = etree.fromstring(text.encode())
    for element in tree.iter():
        element.text, element.tail = element.text and element.text.strip() and "x", None
    return etree.tostring(tree)


STRUCTURE = {
    "json": _json_structure,
    "properties": lambda text: list(javaproperties.loads(text)),
    "android": _xml_structure,
    "apple": lambda text: list(openstep_plist.loads(text.replace("'", '"').replace('t\\"', "t'"))),
}


@pytest.mark.parametrize("format", STRUCTURE)
def test_the_structure_stays(format):
    """With words in another order and at other places."""
    text = FILES[format].replace('"only";\n', "")
    assert STRUCTURE[format](translate_document(text, format, backwards)) == STRUCTURE[format](text)


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("One.\nTwo\n\n  - three\n", ["One.", "Two", "- three"]),
        ("a line that\ngoes on", ["a line that goes on"]),
        ("Name:\tvalue", ["Name:", "value"]),
        ("-a, --all   show  all", ["show", "all"]),
        ("<p>One <b>dog</b></p><p>Two<br>three</p>", ["One dog", "Two", "three"]),
        ("<caption>One</caption>two<menu>three</menu><legend>Four</legend>", ["One", "two", "three", "Four"]),
        ("Copy it to <dir> first", ["Copy it to first"]),
        ("Press <Enter> now, <0>dog</0> <1/>", ["Press now, dog"]),
        ("Run <code>a <b>b</b></code> now", ["Run now"]),
        ("a < b and c > d", ["a < b and c > d"]),
        ("&File and _Edit, AT&T, snake_case", ["File and Edit, AT&T, snake_case"]),
        ("&Open dog &amp; cat", ["Open dog & cat"]),
        ("Save _as", ["Save as"]),
        ("Tom &mdash; 5&nbsp;dogs &foo; &#228;", ["Tom \N{EM DASH} 5 dogs &foo; ä"]),
        ("{n, plural, one {# dog} other {{n} dogs}} now", ["dog", "dogs", "now"]),
        ("{n, plural, one {# dog} other {", ["{n, plural, one {# dog} other {"]),
        ("It''s {n, plural, other {a '{' dog''s}}", ["It's", "a dog's"]),
        ("It''s # 1 {n}", ["It''s # 1"]),
        ("{a, select, x {{n, plural, other {#}}} other {y dog}}", ["y dog"]),
        # i18next-intervalplural-postprocessor 3.0
        ("(1)[one item];(2-7)[a [few] {{n}} items]; (8-inf)[a\nlot];", ["one item", "a [few] items", "a lot"]),
        ("(1)[one item]", ["one item"]),
        ("(1)[one item] and (2)[two]", ["(1)[one item] and (2)[two]"]),
        ("{n, date, short} at {0,number,#.##}", ["at"]),
        ("It''s {t, time, short} by '{'name'}'", ["It's by"]),
        ("Don't use '{'a dog'}' or '{x}'", ["Don't use a dog or"]),
        ("Mail me{'@'}home.org {'|'} {'{'} or {'@'}anna | {'it\\'s'} \\| dog", ["Mail or", "dog"]),
        ("car | cars", ["car", "cars"]),
        ("Press @:button.save, @.upper:a or @.fooBar:btn-save and @:{'a b'}", ["Press, or and"]),
        ('Say $t(key, {"count": {{n}} }) to {{- name}}', ["Say to"]),
        ("Hello {name}, $t(a.b) {{ x }} %{y} %1$s %@", ["Hello,"]),
        ("fooBar", []),
        ("sign-in", []),
        ("Sign-in", ["Sign-in"]),
        ("3", []),
        ("第3回", ["第3回"]),
        ("https://example.org/a b", ["b"]),
    ],
)
def test_what_is_read_of_a_message(text, read):
    found, paragraphs = changed(json.dumps([text]), "json")
    assert paragraphs == read
    assert json.loads(found) == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{n, plural, one {# old dog} other {# old dogs <b>here</b>}}",
            "{n, plural, one {# DOG OLD} other {# <b>HERE</b> DOGS OLD}}",
        ),
        ("Save _as a file", "FILE A _AS SAVE"),
        ("Run <code>x</code> now", "NOW RUN <code>x</code>"),
        ("Take <0>the dog</0> out", "OUT <0>DOG THE</0> TAKE"),
    ],
)
def test_where_the_markup_of_a_message_goes(text, expected):
    assert json.loads(translate_document(json.dumps([text]), "json", backwards)) == [expected]


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        # ICU 77: an apostrophe before a brace, a tag or, in plurals, "#", begins a quotation.
        ("dog{n}", "l'", "l''{n}"),
        ("dog<b>{n}</b>", "l'", "l''<b>{n}</b>"),
        ("{n, plural, other {# dog}}", "l'", "{n, plural, other {# l''}}"),
        ("{n, plural, other {dogs of '#'}} ", "l'ami", "{n, plural, other {l'ami '#'}} "),
        ("'<b>'dog'</b>'", "l'ami", "'<b>'l'ami'</b>'"),
    ],
)
def test_an_apostrophe_quotes_nothing_in_formatjs(text, translation, expected):
    found = translate_document(json.dumps({"a": {"defaultMessage": text}}), "json", always(translation))
    assert json.loads(found)["a"]["defaultMessage"] == expected


@pytest.mark.parametrize("file", ['{"@@locale": "en", "a": "@"}', '{"locale": "en", "translations": {"a": "@"}}'])
def test_an_apostrophe_is_only_that_in_files_of_flutter_and_angular(file):
    """By default: Flutter's option use-escaping is false, and Angular has no quotes."""
    found = translate_document(file.replace('@"', '{n, plural, other {dog {n}}}"'), "json", always("l'"))
    assert "{n, plural, other {l' {n}}}" in found or "{n, plural, other {l'{n}}}" in found


def test_the_ranges_of_i18next_stay():
    """i18next-intervalplural-postprocessor 3.0 splits a value at each semicolon."""
    text = json.dumps({"a_interval": "(1)[one dog];(2-7)[some dogs];(8-inf)[many dogs];"})
    found = json.loads(translate_document(text, "json", backwards))
    assert found == {"a_interval": "(1)[DOG ONE];(2-7)[DOGS SOME];(8-inf)[DOGS MANY];"}
    assert json.loads(translate_document('["(1)[a dog]"]', "json", always("ein; Hund"))) == ["(1)[ein, Hund]"]


def test_a_link_of_vue_i18n_ends_where_it_did():
    """In "@:save." the key has a full stop (@intlify/message-compiler 11.4), unless an empty literal ends it."""
    text = json.dumps({"a": "Press @:button.save <b>now</b>"})
    found = translate_document(text, "json", always("Den Knopf drücken!", [(0, 1), (1, 1), (1, 2)]))
    assert json.loads(found) == {"a": "Den <b>Knopf drücken</b> @:button.save{''}!"}


def test_placeholders_of_java_keep_their_arguments():
    """java.util.Formatter of Java 21: flags "," and "(", dates, and %n, which ends a line and takes no argument."""
    text = "a = The %s sees %,d dogs at %tB%nNow %% %(,.2f books\nb = It has 20%n of %1$tY%n\n"
    expected = "a = AT DOGS SEES %2$,d THE %1$s %3$tB%nBOOKS NOW %% %4$(,.2f\nb = OF 20%N HAS IT %1$tY%n\n"
    assert translate_document(text, "properties", backwards) == expected
    resource = '<resources><string name="a">{}</string></resources>'
    written = translate_document(resource.format("The %1$,d dogs%nA cat %n"), "android", backwards)
    assert written == resource.format("DOGS THE %1$,d%nCAT A %n")


def test_text_in_quotation_marks_of_java_stays():
    text = "a=Dogs of '{0}' and {1}\nb=It''s {0} of '{'dogs'}'\nc=A dog '{it''s {0}}' {1}\n"
    assert capitals(text, "properties") == (
        "a=DOGS OF '{0}' AND {1}\nb=IT''S {0} OF '{'DOGS'}'\nc=A DOG '{it''s {0}}' {1}\n"
    )


def test_an_apostrophe_is_doubled_where_java_and_icu_require_it():
    text = "a={0} is old\nb=A dog\n"
    assert translate_document(text, "properties", always("l'ami")) == "a={0} l''ami\nb=l'ami\n"
    for quote, written in (("''", "l''ami"), ("", "l'ami")):
        text = json.dumps([f"{{n, plural, other {{a{quote} dog}}}}"])
        assert json.loads(translate_document(text, "json", always("l'ami"))) == [f"{{n, plural, other {{{written}}}}}"]


def test_an_android_string_does_not_become_a_reference():
    text = "<resources><string>A dog</string></resources>"
    assert translate_document(text, "android", always("?a/b @c")) == text.replace("A dog", r"\?a/b @c")


def test_the_marks_of_cdata_stay_where_they_are():
    text = "<resources><string><![CDATA[a dog]]> and a <g>x<![CDATA[cat]]></g> here</string></resources>"
    expected = "<![CDATA[DOG A]]> HERE A <g>x<![CDATA[cat]]></g> AND"
    assert translate_document(text, "android", backwards) == f"<resources><string>{expected}</string></resources>"


# -- what cannot be read -----------------------------------------------------------------------------------------------

LAUGHS = '<!DOCTYPE a [\n<!ENTITY a "{}">\n<!ENTITY b "{}">]>'.format("ha" * 9, "&a;" * 9)


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        ("po", 'msgid "a"\nmsgstr "b\n', "line 2: not a line of a PO file"),
        ("po", 'msgid "a"\nmsgid "b"\n', "line 2: msgid is out of place"),
        ("po", '\n"a"\n', "line 2: a string that belongs to nothing"),
        ("po", 'msgid "a"\n', "line 1: there is no msgstr before the end of this line"),
        ("po", 'msgid "a"\nmsgid_plural "b"\nmsgstr ""\n', "line 3: there is no msgstr[0] before the end of this line"),
        ("json", '{\n"a" 1}', "line 2: not valid JSON (Expecting ':' delimiter)"),
        ("json", "[" * 100_000, "JSON that is nested too deeply"),
        ("json", '[\n"\\ud83d"]', "line 2: half of a surrogate pair, which is not a character"),
        ("properties", "\na=\\u12", "line 2: \\u without four hexadecimal digits"),
        ("properties", "\na=\\ude00", "line 2: half of a surrogate pair, which is not a character"),
        ("apple", '"a" = "b"\n"c"', "line 2: expected a semicolon"),
        ("apple", '"a" = "b', "line 1: expected a value"),
        ("apple", "/* a", "line 1: expected a key"),
        ("apple", '"a" = "\\Ude00";', "line 1: half of a surrogate pair, which is not a character"),
        ("android", "<resources>\n<string>a</resources>", "line 2: not valid XML (mismatched tag)"),
        ("android", "<a/>", "not Android's <resources>, but <a>"),
        ("android", "<resources><string>\\u1</string></resources>", "line 1: \\u without four hexadecimal digits"),
        (
            "android",
            f"{LAUGHS}<resources>&b;</resources>",
            "line 2: declarations of entities are not read; remove them",
        ),
        ("xliff", f"{LAUGHS}<xliff>&b;</xliff>", "line 2: declarations of entities are not read; remove them"),
        (
            "xliff",
            '<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/passwd">]><a>&x;</a>',
            "line 1: declarations of entities are not read; remove them",
        ),
        ("xliff", '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x"><a>&x;</a>', 'not XLIFF 1 or 2, but <a version="">'),
        ("xliff", "", "line 1: not valid XML (no element found)"),
        (
            "xliff",
            '<?xml version="1.0" encoding="ISO-8859-1"?><a/>',
            "line 1: declares the encoding ISO-8859-1; convert it to UTF-8, also in this line",
        ),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(format, text, message):
    with pytest.raises(UserError) as error:
        translate_document(text, format, always("x"))
    assert str(error.value) == message


@pytest.mark.parametrize("format", ["android", "xliff"])
def test_deeply_nested_elements_are_read(format):
    inner = "<b>" * 2_000 + "a dog" + "</b>" * 2_000
    text = catalog(format, ["@"]).replace("@", inner)
    assert translate_document(text, format, always("x")).count("<b>") in (2_000, 4_000)
