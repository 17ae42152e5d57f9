#!/bin/sh
# Sphinx 9.0.4. A translation with all references of its message in another order is "inconsistent": "See [1]_ and [#a]_"
# translated as "[#a]_ und [1]_" draws a warning that shows the same references twice, and `sphinx-build -W` fails; so do
# named links (`a`_). Roles such as :ref: may change their order. One would guess that only missing or foreign references
# are inconsistent, since the warning exists to find these, and word order is what translations change. It matters to
# translators and to programs that fill Sphinx's catalogs: two footnotes in one sentence keep their order, or the
# documentation is not built where warnings are errors.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q sphinx==9.0.4
mkdir -p s/locale/de/LC_MESSAGES
echo 'project = "x"; locale_dirs = ["locale"]; gettext_compact = False' > s/conf.py
cat > s/index.rst <<'R'
.. _here:

Title
=====

See [1]_ and [#a]_ now.

Read :ref:`here` and :doc:`index` now.

.. [1] One.
.. [#a] Two.
R
build() {
    printf 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "%s"\nmsgstr "%s"\n' "$1" "$2" > s/locale/de/LC_MESSAGES/index.po
    v/bin/sphinx-build -q -E -b html -D language=de s out 2> log || true
    sed 's/^.*WARNING/WARNING/' log
}
v/bin/sphinx-build --version
echo "same order:";  same=$(build 'See [1]_ and [#a]_ now.' 'Siehe [1]_ und [#a]_ jetzt.'); echo "$same"
echo "other order:"; other=$(build 'See [1]_ and [#a]_ now.' 'Siehe [#a]_ und [1]_ jetzt.'); echo "$other"
echo "roles in another order:"; roles=$(build 'Read :ref:`here` and :doc:`index` now.' 'Lies :doc:`index` und :ref:`here` jetzt.'); echo "$roles"
case "$other" in *"inconsistent footnote references in translated message"*) ;; *) echo changed; exit 1 ;; esac
[ -z "$same" ] && [ -z "$roles" ] || { echo changed; exit 1; }
echo as described
