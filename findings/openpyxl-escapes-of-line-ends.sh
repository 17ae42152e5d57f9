#!/bin/sh
# openpyxl 3.1.5, with files of XlsxWriter 3.2.9. A carriage return in a cell, as texts pasted from Windows have, is written
# into XLSX as "_x000D_" (ECMA-376, part 1, 22.9.2.19), by XlsxWriter. openpyxl returns these seven characters
# as text. A cell whose text is really "_x000D_" is written as "_x005F_x000D_" so that it can be told apart; openpyxl takes
# out "x005F_" and returns "_x000D_" for both, so that what it returns cannot be put right. One would guess that it
# undoes the escape, since it has a function for that (openpyxl.utils.escape.unescape), which it calls for headers and
# footers only. It matters to whoever trains on spreadsheets: "_x000D_" in the middle of sentences.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q openpyxl==3.1.5 XlsxWriter==3.2.9
cat > run.py <<'P'
from importlib.metadata import version
import openpyxl
import xlsxwriter
print("openpyxl", version("openpyxl"), "XlsxWriter", version("XlsxWriter"))
book = xlsxwriter.Workbook("a.xlsx")
book.add_worksheet().write_column(0, 0, ["one\r\ntwo", "one_x000D_\ntwo"])
book.close()
found = [row[0] for row in openpyxl.load_workbook("a.xlsx").active.iter_rows(values_only=True)]
print("read:", found)
raise SystemExit(found != ["one_x000D_\ntwo", "one_x000D_\ntwo"])
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described
