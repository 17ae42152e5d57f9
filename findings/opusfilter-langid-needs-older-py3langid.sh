#!/bin/sh
# OpusFilter 3.3.1 with py3langid 0.4.0, which pip installs beside it: LangidFilter, its language filter without a download,
# cannot be made, since py3langid's LanguageIdentifier no longer has `from_pickled_model`. One would guess otherwise:
# OpusFilter asks for py3langid 0.2.2 or later, and `pip check` finds nothing wrong. Only its extra for fastText, which has
# nothing to do with this filter, asks for one before 0.3.0; with that the filter works. It matters to everybody who
# filters a corpus in a new environment, and to this project, whose own check reads py3langid's model by 0.4's names.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
cat > run.py <<'P'
from importlib.metadata import requires, version
from opusfilter.lid import LangidFilter
print("opusfilter", version("opusfilter"), "py3langid", version("py3langid"))
print([line for line in requires("opusfilter") if line.startswith("py3langid") and "extra" not in line])
pair = "Good morning, how are you today?", "Guten Morgen, wie geht es Ihnen heute?"
try:
    found = list(LangidFilter(languages=["en", "de"], thresholds=[0.5, 0.5]).filter([pair]))
except AttributeError as error:
    found = str(error)
print(found)
is_new = version("py3langid") == "0.4.0"
raise SystemExit(found != "type object 'LanguageIdentifier' has no attribute 'from_pickled_model'" if is_new else found != [pair])
P
python3 -m venv v
v/bin/pip install -q opusfilter==3.3.1 py3langid==0.4.0
v/bin/pip check
v/bin/python run.py || { echo changed; exit 1; }
v/bin/pip install -q py3langid==0.2.2
v/bin/python run.py || { echo changed; exit 1; }
echo as described
