#!/bin/sh
# Babel 2.19.0. `pybabel compile` refuses a right Arabic catalog: it compares msgstr[0] with the singular and msgstr[1] with
# the plural in every language, but in Arabic (as in Welsh and Cornish) msgstr[0] is the form for 0 and msgstr[1] that for
# 1, which may say "one bowl" without a number. "placeholders are incompatible", exit code 1; `msgfmt --check` accepts the
# file, since it asks the rule in the header which numbers a form stands for. One would guess that Babel does, too: it
# writes the six forms of Arabic into a new catalog itself. It matters to whoever fills catalogs: a natural translation of
# "One bowl was removed." fails the build, and the number has to be in it.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q babel==2.19.0
cat > run.py <<'P'
import gettext, io
from importlib.metadata import version
from babel.messages.mofile import write_mo
from babel.messages.plurals import PLURALS
from babel.messages.pofile import read_po
print("babel", version("babel"))
count, rule = PLURALS["ar"]
form_of = gettext.c2py(rule)
print("forms of 0, 1, 2:", [form_of(number) for number in (0, 1, 2)])
forms = ["%d zero", "one", "%d two", "%d few", "%d many", "%d other"]
text = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: ar\\n"\n"Plural-Forms: nplurals={count}; plural={rule};\\n"\n\n'
text += '#, python-format\nmsgid "One bowl was removed."\nmsgid_plural "%d bowls were removed."\n'
text += "".join(f'msgstr[{number}] "{form}"\n' for number, form in enumerate(forms))
catalog = read_po(io.StringIO(text))
errors = [str(error) for message in catalog for error in message.check(catalog)]
compiled = io.BytesIO()
write_mo(compiled, catalog)
compiled.seek(0)
shown = gettext.GNUTranslations(compiled).ngettext("One bowl was removed.", "%d bowls were removed.", 1)
print("shown for 1:", shown)
print("errors:", errors)
raise SystemExit((form_of(1), shown, errors) != (1, "one", ["placeholders are incompatible"]))
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described
