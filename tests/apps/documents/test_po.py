"""PO: plural forms, placeholders of flags, headers, doubtful translations, Sphinx; gettext and Babel are the judges."""

import gettext
import io
import json
import logging
import re
import shutil
import subprocess

import polib
import pytest
from babel.messages.pofile import read_po
from stand_ins import always, backwards
from translators import DOUBTS, SENTENCES, calibrate, one_vocabulary, run_translate

from modeling_scratch.apps.documents.document import read_document, translate_document
from modeling_scratch.apps.translate.paragraphs import Translated
from modeling_scratch.errors import UserError

HEADER = r"""#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: dogs 1\n"
"PO-Revision-Date: 2026-01-01 12:00+0000\n"
"Last-Translator: A B <a@example.org>\n"
"Language-Team: none\n"
"Language: \n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

"""
MESSAGES = r"""#. A comment for translators
#: src/a.c:1 src/b.c:2
#, c-format
msgid "Open the _file %s"
msgstr ""

#, fuzzy
#| msgid "Previous"
msgid "Not quite"
msgstr ""

msgctxt "menu"
msgid "Done"
msgstr "Fertig"

msgctxt "state"
msgid "Done"
msgstr   ""

msgid ""
"A line that goes on "
"and on, with <b>tags</b> &amp; \"quotes\".\n"
"  -h, --help     show this\n"
"    and more\n"
msgstr ""

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#, c-format
msgid "%d dog"
msgid_plural "%d dogs"
msgstr[0] "%d Hund"
msgstr[1] ""

#~ msgid "Obsolete"
#~ msgstr ""
"""
PLURALS = r"""#, c-format
msgid "One dog slept."
msgid_plural "%d dogs slept."
msgstr[0] ""
msgstr[1] ""

#, c-format
msgid "%d dog sleeps."
msgid_plural "%d dogs sleep."
msgstr[0] ""
msgstr[1] ""
"""
needs_gettext = pytest.mark.skipif(not shutil.which("msgfmt"), reason="gettext is not installed")


def in_capitals(paragraphs: list[str]) -> list[Translated]:
    return [always(paragraph.upper().replace("%D", "%d"))([paragraph])[0] for paragraph in paragraphs]


def message(text: str, flag: str = "") -> str:
    comment = f"#, {flag}\n" if flag else ""
    return f'{comment}msgid "{text}"\nmsgstr ""\n'


def filled(text: str, translate=backwards, target: str | None = "de") -> list[str]:
    return [entry.msgstr for entry in polib.pofile("\n" + translate_document(text, "po", translate, target=target))]


def checked(text: str, tmp_path) -> str:
    """What `msgfmt --check` says about a catalog."""
    (tmp_path / "x.po").write_text(text)
    command = ["msgfmt", "--check", "--check-accelerators=_", "-o", str(tmp_path / "x.mo"), str(tmp_path / "x.po")]
    return subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stderr


# -- what is translated, and what stays --------------------------------------------------------------------------------

FILLED = {
    '#, fuzzy\nmsgid ""': 'msgid ""',
    'msgid "Open the _file %s"\nmsgstr ""': 'msgid "Open the _file %s"\nmsgstr "OPEN THE _FILE %s"',
    'msgstr   ""': 'msgstr   "DONE"',
    'and more\\n"\nmsgstr ""': 'and more\\n"\nmsgstr ""\n"A LINE THAT GOES ON AND ON, WITH <b>TAGS</b> &amp; '
    '\\"QUOTES\\".\\n"\n"  -h, --help     SHOW THIS\\n"\n"    AND MORE\\n"',
    'files"\nmsgstr[0] ""\nmsgstr[1] ""': 'files"\nmsgstr[0] "%d FILE"\nmsgstr[1] "%d FILES"',
    '"%d Hund"\nmsgstr[1] ""': '"%d Hund"\nmsgstr[1] "%d DOGS"',
    "Language: \\n": "Language: de\\n",
    "=CHARSET": "=UTF-8",
    "nplurals=INTEGER; plural=EXPRESSION;": "nplurals=2; plural=(n != 1);",
}


def test_only_messages_without_a_translation_get_one():
    expected = HEADER + MESSAGES
    for old, new in FILLED.items():
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    assert translate_document(HEADER + MESSAGES, "po", in_capitals, target="de") == expected
    assert translate_document(expected, "po", always("x"), target="fr") == expected


def structure(text: str):
    file = polib.pofile("\n" + text)
    for entry in file:
        entry.msgstr, entry.msgstr_plural = "", {}
    return [(str(entry), entry.flags, entry.previous_msgid, entry.obsolete) for entry in file], file.header


def test_the_structure_stays():
    """With words in another order and at other places."""
    text = HEADER + MESSAGES
    assert structure(translate_document(text, "po", backwards)) == structure(text)


# -- plural forms ------------------------------------------------------------------------------------------------------

# How many forms each language has, according to CLDR or, where it has a rule of its own, gettext; and the forms of some
# numbers.
FORMS = {
    "de": (2, {0: 1, 1: 0, 2: 1, 21: 1}),
    "fr": (2, {0: 0, 1: 0, 2: 1}),
    "es": (2, {1: 0, 2: 1, 1_000_000: 1}),  # gettext; CLDR has a form for millions
    "pt-BR": (2, {0: 0, 1: 0, 2: 1}),
    "ru": (3, {1: 0, 21: 0, 2: 1, 22: 1, 5: 2, 11: 2}),
    "sl": (4, {1: 0, 101: 0, 2: 1, 3: 2, 5: 3}),
    "ar": (6, {0: 0, 1: 1, 2: 2, 3: 3, 11: 4, 100: 5}),
    "is": (2, {1: 0, 21: 0, 11: 1, 2: 1}),
    "hi": (2, {0: 0, 1: 0, 2: 1}),
    "cy": (6, {0: 0, 1: 1, 2: 2, 3: 3, 6: 4, 4: 5}),
    "mt": (5, {1: 0, 2: 1, 0: 2, 11: 3, 20: 4}),
    "fa": (2, {0: 0, 1: 0, 2: 1}),
    "mk": (2, {1: 0, 21: 0, 11: 1}),
    "bn": (2, {0: 0, 1: 0, 2: 1}),
    "sw": (2, {1: 0, 0: 1, 2: 1}),
    "zh-TW": (1, {0: 0, 1: 0}),
}


@pytest.mark.parametrize("language", FORMS)
def test_a_template_gets_the_plural_forms_of_the_language(language):
    written = polib.pofile("\n" + translate_document(HEADER + PLURALS, "po", in_capitals, target=language))
    count, rule = re.fullmatch(r"nplurals=(\d); plural=(.*);", written.metadata["Plural-Forms"]).groups()
    form_of = gettext.c2py(rule)
    forms, numbers = FORMS[language]
    assert (int(count), {number: form_of(number) for number in numbers}) == (forms, numbers)
    assert [len(entry.msgstr_plural) for entry in written] == [forms, forms]


@needs_gettext
@pytest.mark.parametrize("language", FORMS)
def test_gettext_and_babel_accept_the_plural_forms_and_no_other_number_than_1_reads_one(language, tmp_path):
    text = translate_document(HEADER + PLURALS, "po", in_capitals, target=language)
    assert checked(text, tmp_path) == ""
    catalog = read_po(io.StringIO(text))
    assert (catalog.fuzzy, [error for entry in catalog for error in entry.check(catalog)]) == (False, [])
    with (tmp_path / "x.mo").open("rb") as file:
        found = gettext.GNUTranslations(file)
    shown = [found.ngettext("One dog slept.", "%d dogs slept.", number) for number in range(2_000)]
    assert {number for number, form in enumerate(shown) if form == "ONE DOG SLEPT."} <= {1}
    assert {form for number, form in enumerate(shown) if number != 1} == {"%d DOGS SLEPT."}


@pytest.mark.parametrize(("target", "forms"), [("ru", 3), ("ja", 1), ("pt-BR", 2), (None, 2)])
def test_a_message_gets_as_many_plural_forms_as_the_language_has(target, forms):
    file = polib.pofile("\n" + translate_document(HEADER + MESSAGES, "po", in_capitals, target=target))
    made, begun = (file.find(msgid).msgstr_plural for msgid in ("%d file", "%d dog"))
    first = "%d FILES" if forms == 1 else "%d FILE"
    assert made == {0: first} | dict.fromkeys(range(1, forms), "%d FILES")
    assert begun == {0: "%d Hund", 1: "%d DOGS"}  # by a person
    if target:
        assert file.metadata["Plural-Forms"].startswith(f"nplurals={forms}; ")
        assert file.metadata["Language"] == target.replace("-", "_")


@needs_gettext
@pytest.mark.parametrize("target", ["de", "ru", "ja"])
def test_gettext_accepts_the_translation(target, tmp_path):
    """Placeholders, line ends, keys and plurals of every message too."""
    text = HEADER + MESSAGES.replace('msgstr[0] "%d Hund"', 'msgstr[0] ""')
    assert checked(translate_document(text, "po", in_capitals, target=target), tmp_path) == ""


# The languages in the table of gettext 0.21 (gettext-tools/src/plural-table.c).
GETTEXT_S = (
    "ja vi ko en de nl sv da no nb nn fo es pt it bg el fi et he eo hu tr pt_BR fr lv ga ro lt ru uk be sr hr cs"
)
GETTEXT_S = f"{GETTEXT_S} sk pl sl".split()


@pytest.mark.skipif(not shutil.which("msginit"), reason="gettext is not installed")
@pytest.mark.parametrize("language", GETTEXT_S)
def test_plural_forms_are_those_of_gettext(language, tmp_path):
    (tmp_path / "x.pot").write_text(HEADER + MESSAGES)
    command = ["msginit", "--no-translator", "-l", language, "-i", str(tmp_path / "x.pot"), "-o", "-"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = translate_document(HEADER + MESSAGES, "po", in_capitals, target=language)
    declared = [polib.pofile(f"\n{text}").metadata["Plural-Forms"] for text in (made, ours)]
    numbers, functions = zip(
        *(re.fullmatch(r"nplurals=(\d); plural=(.*);", declaration).groups() for declaration in declared), strict=True
    )
    assert numbers[0] == numbers[1]
    first, second = map(gettext.c2py, functions)
    assert [first(n) for n in range(300)] == [second(n) for n in range(300)]


def test_a_form_for_1_and_other_numbers_is_that_of_the_singular_if_it_shows_the_number():
    written = polib.pofile("\n" + translate_document(HEADER + PLURALS, "po", in_capitals, target="ru"))
    assert [list(entry.msgstr_plural.values()) for entry in written] == [
        ["%d DOGS SLEPT."] * 3,
        ["%d DOG SLEEPS.", "%d DOGS SLEEP.", "%d DOGS SLEEP."],
    ]


@pytest.mark.parametrize(("language", "is_filled"), [("de", True), ("fr", False), ("ja", True), ("ru", False)])
def test_a_plural_without_its_number_stays_empty_where_a_form_is_for_1_and_others(language, is_filled, caplog):
    text = 'msgid "This dog sleeps."\nmsgid_plural "These dogs sleep."\nmsgstr[0] ""\nmsgstr[1] ""\n'
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        written = translate_document(HEADER + text, "po", in_capitals, target=language)
    first = {"ja": "THESE DOGS SLEEP.", "fr": "", "ru": ""}.get(language, "THIS DOG SLEEPS.")
    assert polib.pofile("\n" + written)[0].msgstr_plural[0] == first
    why = "a plural form stands for several numbers, and neither text shows which"
    told = [f"left empty, 1 of 1 messages without a translation: {why} (first: line 14)"]
    assert caplog.messages == ([] if is_filled else told)


# What Russian messages have for the number 1 and for 21, and for others: each text in capitals, or none.
@pytest.mark.parametrize(
    ("flag", "singular", "plural", "first"),
    [
        ("c-format", "%d dog in %s", "%d dogs in %s", "singular"),
        ("c-format", "%<PRIu64> dog", "%<PRIu64> dogs", "singular"),
        ("python-format", "%(n)d dog of %(name)s", "%(n)d dogs of %(name)s", "singular"),
        ("python-brace-format", "{dog_count} dog", "{dog_count} dogs", "singular"),
        ("java-format", "{0,number} dog", "{0,number} dogs", "singular"),
        ("", "{numDogs} dog", "{numDogs} dogs", "singular"),
        ("qt-plural-format", "%n dog", "%n dogs", "singular"),
        ("c-format", "One dog in %d houses", "%d dogs in %d houses", "plural"),
        ("python-brace-format", "One dog of {name}", "{0} dogs of {name}", "plural"),
        ("", "One dog, see http://a.org", "%s dogs, see http://a.org", "plural"),
        # None of these placeholders need be the number, or is one.
        ("c-format", "One dog in %s", "Several dogs in %s", ""),
        ("c-format", "One dog", "Dogs in %s", ""),
        ("c-format", "One dog at 5%%", "Many dogs at 6%%", ""),
        ("python-format", "A dog for %s", "Dogs for %s", ""),
        ("java-printf-format", "A dog on %1$td", "Dogs on %1$td", ""),
        ("python-brace-format", "A bowl for {0}", "Bowls for {0}", ""),
        ("", "A bowl for {name}", "Bowls for {name}", ""),
        ("", "One dog, see http://a.org", "Many dogs, see http://a.org", ""),
        ("", "One dog, see http://a.org", "Many dogs, see http://b.org", ""),
        ("", "One dog <x/> :smile:", "Many dogs <y/> @ann", ""),
    ],
)
def test_only_a_placeholder_that_can_be_the_number_shows_it(flag, singular, plural, first):
    text = message(singular, flag).replace("msgstr", f'msgid_plural "{plural}"\nmsgstr[0]') + 'msgstr[1] ""\n'
    (entry,) = polib.pofile("\n" + translate_document(HEADER + text, "po", backwards, target="ru"))
    found = [" ".join(sorted(form.upper().split())) for form in entry.msgstr_plural.values()]
    texts = {"singular": singular, "plural": plural}
    wanted = [" ".join(sorted(texts[name].upper().split())) for name in (first, "plural", "plural") if first]
    assert found == (wanted or ["", ""])


def test_the_rule_of_the_file_decides_what_its_plural_forms_stand_for():
    for rule, singular in (("n != 1", 0), ("n > 1", None), ("n == 1", None), ("n == 1 ? 0 : 1/0", 0), ("x", 0)):
        header = HEADER.replace("nplurals=INTEGER; plural=EXPRESSION", f"nplurals=2; plural=({rule})")
        written = polib.pofile("\n" + translate_document(header + PLURALS, "po", in_capitals, target="de"))
        forms = written[0].msgstr_plural
        assert next((number for number, form in forms.items() if form == "ONE DOG SLEPT."), None) == singular


# -- placeholders ------------------------------------------------------------------------------------------------------

# For each flag of gettext (gettext-tools/src/message.c), a text of words and placeholders.
FLAGS = {
    "c": "see %<PRIu64> of %-5<PRId64> dogs with %.*s at %5.1f%% now",
    "objc": "see %@ of %ld dogs now",
    "c++": "see {} of {:>{}} dogs now",
    "python": "see %(big)s of %(n)5.2f%% dogs now",
    "python-brace": "see {no:>5} of {state!r} dogs at {a.b[c]} now",
    "java": "see {0,number,integer} of {1} dogs now",
    "java-printf": "see %1$tY of %2$-5s dogs %n now",
    "csharp": "see {0,10:N2} of {1,-8} dogs now",
    "javascript": "see %s of %j dogs at 5%% now",
    "scheme": "see ~a of ~5d dogs ~% now",
    "lisp": "see ~a of ~,2f dogs ~% now",
    "elisp": "see %S of %5d dogs now",
    "librep": "see %S of %5d dogs now",
    "rust": "see {} of {name:?} dogs now",
    "go": "see %[2]d of %[1]v dogs at %+v now",
    "ruby": "see %<big>5.1f of %{name} dogs now",
    "sh": "see $name of ${target} dogs now",
    "sh-printf": "see %s of %5d dogs now",
    "awk": "see %s of %5d dogs now",
    "lua": "see %q of %5.1f dogs now",
    "object-pascal": "see %0:s of %1:-5d dogs now",
    "modula2": "see %s of %5d dogs now",
    "smalltalk": "see %1 of %2 dogs at 5%% now",
    "qt": "see %L1 of %2 dogs now",
    "qt-plural": "see %n of %Ln dogs now",
    "kde": "see %1 of %10 dogs now",
    "kde-kuit": "see <filename>%1</filename> of %2 dogs now",
    "boost": "see %1% of %|2$5| dogs at %|3$+d| now",
    "tcl": "see %2$s of %1$5d dogs now",
    "perl": "see %vd of %5lld dogs at %*v02x now",
    "perl-brace": "see {name} of {x_1} dogs now",
    "php": "see %'x10d of %s dogs now",
    "gcc-internal": "see %qT of %<big%> dogs at %r%.*s%R now",
    "gfc-internal": "see %qs of %L dogs at %C now",
    "ycp": "see %1 of %2 dogs now",
}


@pytest.mark.parametrize("flag", FLAGS)
def test_the_placeholders_of_each_flag_of_gettext_stay(flag):
    text = FLAGS[flag]
    assert filled(message(text, f"{flag}-format"), in_capitals) == [
        " ".join(word.upper() if word.isalpha() else word for word in text.split()).replace("big%>", "BIG%>")
    ]


# Messages with their flags, each word of which goes the other way.
CONVERSIONS = {
    ("c-format", "The old man gives %.*s books"): "BOOKS GIVES %.*s MAN OLD THE",
    ("c-format", "The man has %<PRIuMAX> of %-5<PRIu64> dogs"): "DOGS OF %2$-5<PRIu64> HAS %1$<PRIuMAX> MAN THE",
    ("c-format", "The man gives %*d of %s dogs"): "DOGS OF %*d GIVES %s MAN THE",
    ("c-format", "The man has % d of %spx"): "%2$s PX OF HAS %1$ d MAN THE",
    ("python-format", "The man has % d books"): "BOOKS HAS % d MAN THE",
    ("c-format", "The man %s has %d/%d dogs"): "DOGS HAS %2$d/%3$d MAN %1$s THE",
    ("java-printf-format", "The man %s has %,d/%tB dogs, %,d"): "DOGS HAS %2$,d/%3$tB MAN %1$s THE, %4$,d",
    ("qt-format", "The man has %n of %1px"): "%1 PX OF HAS %n MAN THE",
}


@pytest.mark.parametrize(("flag", "text"), CONVERSIONS)
def test_the_placeholders_that_a_flag_declares_stay(flag, text):
    assert filled(message(text, flag)) == [CONVERSIONS[flag, text]]


def test_placeholders_without_numbers_keep_their_arguments():
    text = "The %s sees %d dogs"
    assert filled(message(text)) == ["DOGS SEES %2$d THE %1$s"]
    assert filled(message(text, "python-format")) == ["DOGS SEES %s THE %d"]
    assert filled(message(text), in_capitals) == ["THE %s SEES %d DOGS"]


@needs_gettext
def test_gettext_accepts_the_translations_of_all_its_flags_in_any_order(tmp_path):
    """Of those that gettext 0.21 does not know, the flag has no meaning to it."""
    text = HEADER + "\n".join(message(text, flag) for flag, text in CONVERSIONS) + "\n"
    for flag, example in FLAGS.items():
        for name, source in (("a", example), ("b", f"{example} and 100% clay")):
            text += f'#, {flag}-format\nmsgctxt "{flag} {name}"\n{message(source)}\n'
    written = translate_document(text, "po", backwards, target="de")
    assert checked(written, tmp_path) == ""
    empty = {entry.msgctxt for entry in polib.pofile("\n" + written) if not entry.msgstr}
    assert {name for name in empty if name.endswith(" a")} <= {"go a"}  # its placeholders must keep their order


@pytest.mark.parametrize("flag", ["d-format", "c-format, cobol-format", "possible-d-format"])
def test_a_message_with_an_unknown_flag_stays_empty(flag, caplog):
    text = message("A dog %s", flag)
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        assert translate_document(text, "po", always("x")) == text
        assert read_document(text, "po").paragraphs == []
    assert caplog.messages == [
        "left empty, 1 of 1 messages without a translation: a flag declares placeholders that are not known"
        " (first: line 2)"
    ]
    for known in ("no-d-format", "impossible-d-format", "range: 0..5", "no-wrap"):
        assert filled(message("A dog", known)) == ["DOG A"]


def test_a_message_whose_translation_has_other_placeholders_stays_empty():
    text = message("Half of %s", "c-format")
    assert filled(text, always("50 %% von")) == ["50 %% von %s"]
    assert translate_document(text, "po", always("50 % von")) == text
    assert translate_document(text, "po", always("%s von")) == text
    plural = '#, c-format\nmsgid "A dog"\nmsgid_plural "%d dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    assert translate_document(plural, "po", always("50 % Hunde")) == plural


def test_loops_of_lisp_stay_empty():
    """Their order and nesting matter."""
    assert filled(message("See ~{~a~^, ~} now", "lisp-format")) == [""]


# If a flag says so, "% c" is a placeholder to gettext and Babel, so that no translation of "100% clay" is right.
@pytest.mark.parametrize(
    ("text", "flag", "written"),
    [
        ("100% clay", "", "CLAY 100%"),
        ("100% happy dogs", "no-python-format", "DOGS HAPPY 100%"),
        ("100% clay", "c-format", ""),
        ("The dog is 100% happy", "python-format", ""),
        ("5 % a day", "c-format", ""),
        ("5 % dry", "php-format", ""),
        ("It has 50 % dogs", "", "DOGS % 50 HAS IT"),
        ("20% wet dogs", "python-format", "DOGS WET 20%"),  # "% w" is none
        ("Hot dogs %d%% of them", "c-format", "THEM OF DOGS %d%% HOT"),
        ("%s%s sleeps", "c-format", "%s%s SLEEPS"),
        ("Now %d%%%s left", "", "LEFT NOW %d%%%s"),
        ("%d%% done", "", "%d%% DONE"),
        ("50%<b>dogs</b> sleep", "", "SLEEP <b>50%DOGS</b>"),
    ],
)
def test_percent_signs(text, flag, written):
    assert filled(message(text, flag)) == [written]


@pytest.mark.parametrize(
    ("text", "flag", "written"),
    [
        ("A dog of {0}", "java-format", "l''ami {0}"),
        ("The cat''s dog", "java-format", "l''ami"),
        ("A dog", "java-format", "l''ami"),  # the flag says that MessageFormat reads it
        ("A dog of {0}", "", "l'ami {0}"),
        ("A dog %1$s", "java-printf-format", "l'ami %1$s"),
    ],
)
def test_apostrophes_of_java(text, flag, written):
    assert filled(message(text, flag), always("l'ami"), "fr") == [written]


def test_an_apostrophe_of_java_is_one_to_the_model():
    assert read_document(message("The cat''s dog", "java-format"), "po").paragraphs == ["The cat's dog"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("&Open file", "&FILE OPEN"),
        ("_Open file", "_FILE OPEN"),
        ("Open &file", "&FILE OPEN"),
        ("E&xit", "&EXIT"),
        ("Bro&wse dogs...", "DOGS... &BROWSE"),
        ("Go (&now)", "(&NOW) GO"),
        ("{0} &Open file", "{0} &FILE OPEN"),
        ("<b>&Open</b> file", "FILE <b>&OPEN</b>"),
        ("Save & exit", "EXIT & SAVE"),
        ("AT&T sees file_name", "FILE_NAME SEES AT&T"),
    ],
)
def test_the_mark_of_a_key_is_directly_before_a_word(text, written):
    assert filled(message(text)) == [written]


# -- the header, and doubts --------------------------------------------------------------------------------------------


def test_the_header_of_a_filled_template_is_not_fuzzy():
    text = HEADER + message("A dog")
    assert translate_document(text, "po", in_capitals, target="de").startswith('msgid ""\n')
    other = text.replace("#, fuzzy\n", "# A title\n#, no-wrap, fuzzy\n")
    assert translate_document(other, "po", in_capitals, target="de").startswith('# A title\n#, no-wrap\nmsgid ""\n')


@pytest.mark.parametrize(
    ("named", "target"),
    [
        ("fr", "de"),
        ("fr_CA", "de"),
        ("fr_FR.UTF-8", "de"),
        ("pt@latin", "de"),
        ("zh_TW", "zh-CN"),
        ("sr@latin", "sr"),
        ("uz_UZ@cyrillic", "uz"),
        ("en", "de"),
    ],
)
def test_a_catalog_in_another_language_is_refused(named, target):
    text = HEADER.replace("Language: ", f"Language: {named}") + message("A dog") + 'msgid "b"\nmsgstr "c"\n'
    with pytest.raises(
        UserError, match=r"^line 3: the file is for translations into .*, but the model translates into .*;"
    ):
        translate_document(text, "po", in_capitals, target=target)


@pytest.mark.parametrize(
    ("named", "target"),
    [
        ("de_AT", "de"),
        ("de_AT", "de-CH"),
        ("zh_TW", "zh"),
        ("nb", "no"),
        ("German", "de"),
        ("fr", None),
        ("fr", "xx"),
        ("", "de"),
        ("sr@latin", "sr-Latn"),
        ("sr_RS@cyrillic", "sr"),
        ("ca@valencia", "ca"),
    ],
)
def test_a_catalog_in_the_same_or_an_unknown_language_is_filled(named, target):
    text = HEADER.replace("Language: ", f"Language: {named}") + message("A dog")
    assert filled(text, target=target) == ["DOG A"]


def test_a_template_that_names_the_language_of_its_texts_gets_another():
    text = HEADER.replace("Language: ", "Language: en").replace(
        "nplurals=INTEGER; plural=EXPRESSION", "nplurals=1; plural=0"
    )
    written = polib.pofile("\n" + translate_document(text + PLURALS, "po", in_capitals, target="ru"))
    assert written.metadata["Language"] == "ru"
    assert written.metadata["Plural-Forms"].startswith("nplurals=3;")
    assert len(written[0].msgstr_plural) == 3
    with pytest.raises(UserError, match=r"^line 3: the file is for"):  # an empty French catalog
        translate_document(text.replace("Language: en", "Language: fr") + PLURALS, "po", in_capitals, target="ru")


def test_doubtful_translations_are_fuzzy_and_counted(caplog):
    def translate(paragraphs):
        return [Translated("" if "cat" in text else "x", is_doubtful="dog" in text) for text in paragraphs]

    text = "\n".join(
        [message("A dog"), "#: a.c:1\n" + message("Two dogs", "no-wrap"), message("A bird"), message("A cat")]
    )
    with caplog.at_level(logging.INFO, logger="modeling_scratch"):
        written = translate_document(text, "po", translate)
    assert written == (
        '#, fuzzy\nmsgid "A dog"\nmsgstr "x"\n\n#: a.c:1\n#, fuzzy, no-wrap\nmsgid "Two dogs"\nmsgstr "x"\n\n'
        'msgid "A bird"\nmsgstr "x"\n\nmsgid "A cat"\nmsgstr ""\n'
    )
    assert caplog.messages == [
        "left empty, 1 of 4 messages without a translation: the model wrote nothing (first: line 12)",
        "marked fuzzy, 2 of 4 messages without a translation: the translation is doubtful (first: line 1)",
    ]


def test_the_command_marks_what_its_model_doubts(tmp_path, monkeypatch):
    folder = calibrate(shutil.copytree(one_vocabulary(), tmp_path / "model"))
    confidence = json.loads((folder / "confidence.json").read_text())
    del confidence["signals"]["mean_log_probability"]  # which rounding decides, since the model has hardly learnt
    (folder / "confidence.json").write_text(json.dumps(confidence))
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["exponential_decay_length_penalty"] = [4, 2.0]  # so that no output is cut
    (folder / "generation_config.json").write_text(json.dumps(settings))
    texts = [SENTENCES[0], *DOUBTS, f"{SENTENCES[0]} {next(iter(DOUBTS))}"]
    catalog = "\n".join(map(message, texts)).encode()
    code, output, error = run_translate(monkeypatch, folder, catalog, format="po", max_new_tokens=60)
    entries = polib.pofile("\n" + output.decode())
    assert (code, [entry.flags for entry in entries]) == (0, [[], *[["fuzzy"]] * 4])
    assert "marked fuzzy, 4 of 5 messages without a translation: the translation is doubtful (first: line 4)\n" in error


# -- Sphinx ------------------------------------------------------------------------------------------------------------


def rest(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f"#: ../../index.rst:12\n{message(text)}"


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        ("See ``a b`` now", "See now", "NOW SEE ``a b``"),
        ("Call :py:func:`a.b` and :c:func:`d` now", "Call and now", "NOW AND :c:func:`d` CALL :py:func:`a.b`"),
        ("Read :ref:`the page <a-b>` and :doc:`c`.", "Read the page and.", "AND :doc:`c`. :ref:`PAGE THE <a-b>` READ"),
        ("The :py:obj:`old dog <a.b>` sleeps", "The old dog sleeps", "SLEEPS :py:obj:`DOG OLD <a.b>` THE"),
        ("Press :kbd:`a <b>` now", "Press now", "NOW PRESS :kbd:`a <b>`"),
        ("The |version| of `a dog <https://a.org>`_", "The of a dog", "`DOG A <https://a.org>`_ OF THE |version|"),
        ("A `plain link`_ and word_ now", "A and now", None),  # the order of references would change
        ("A `plain link`_ now", "A now", "NOW A `plain link`_"),
        ("A `dog`__ and :sup:`2`", "A and", "AND A `dog`__ :sup:`2`"),
        ("See [#name]_ now", "See now", "NOW SEE [#name]_"),
        ("Two [Smith20]_ dogs", "Two dogs", "DOGS TWO [Smith20]_"),
        ("An *old* and **big dog**.", "An old and big dog.", "**DOG. BIG** AND *OLD* AN"),
        ("An **old *big* red** dog", "An old big red dog", "DOG **RED *BIG* OLD** AN"),
        (r"Some \*args and a\_b", "Some *args and a_b", r"A_B AND \*ARGS SOME"),
        ("Two * 3 or file_name", "Two * 3 or file_name", "FILE_NAME OR 3 * TWO"),
        (r"A ``dog``\ s bowl", "A s bowl", None),
        ("A dog sleeps::", "A dog sleeps", "SLEEPS DOG A::"),
    ],
)
def test_inline_markup_of_sphinx(text, read, written):
    assert read_document(rest(text), "po").paragraphs == [read]
    if written is not None:
        assert filled(rest(text)) == [written]


# As `msgmerge --add-location=file` and Babel 2.19 write the locations of Sphinx, and autodoc's of what has no file.
@pytest.mark.parametrize(
    "location", ["../../index.rst", "../../index.rst:3", "a.b:1 of", "../../m.py:docstring of a.b:1", "<autodoc>:1"]
)
def test_one_location_of_sphinx_makes_a_catalog_restructuredtext(location):
    text = f"#: {location}\n{message('A dog')}\n#: x:1\n{message('See *a* b')}"
    assert read_document(text, "po").paragraphs == ["A dog", "See a b"]
    assert read_document(text.replace(location, "office.c:1"), "po").paragraphs[1] == "See *a* b"


def test_markup_of_sphinx_is_separated_from_words_that_it_would_touch():
    """Its specification requires white space or punctuation; a backslash and a space are nothing to a reader."""
    links = [(0, 0), (1, 0), (2, 0)]
    assert filled(rest("See *dog* now"), lambda _: [Translated("\u770b\u72d7", [(1, 0)])]) == ["*\u770b\u72d7*"]
    read = rest("See *the dog* of :ref:`x` now")
    assert filled(read, lambda _: [Translated("a*b_ c|", links)]) == [r"*a\*b*\_ :ref:`x` c\|"]
    assert filled(rest(r"*dog*\ s"), always("dogx", [(0, 0)])) == [r"*dog*\ x"]


def test_a_translation_for_sphinx_does_not_become_a_list():
    assert filled(rest("A dog"), always("1. Hund")) == ["\\1. Hund"]
    assert filled(rest("A dog"), always("- Hund")) == ["\\- Hund"]


def test_references_of_sphinx_in_another_order_leave_a_message_empty():
    """Sphinx 9.0 warns of them ("inconsistent references in translated message"), though no reference is missing."""
    assert filled(rest("See [1]_ and [#a]_ now")) == [""]
    assert filled(rest("See [1]_ and [#a]_ now"), in_capitals) == ["SEE [1]_ AND [#a]_ NOW"]


def test_the_name_of_a_link_stays_if_another_message_refers_to_it():
    definition = rest("The `old dog <https://a.org>`_ sleeps")
    assert filled(definition + "\n" + rest("See `old dog`_"))[0] == "SLEEPS THE `old dog <https://a.org>`_"
    assert filled(definition)[0] == "SLEEPS `DOG OLD <https://a.org>`_ THE"
