#!/bin/sh
# datasets 5.2.0. `load_dataset(FOLDER)` of a folder that `DatasetDict.save_to_disk` has written returns rows without an
# error, and returns them twice, the copies changed, once somebody has called `map` on the data set: `map` keeps its
# results as cache-*.arrow in the same folder, and `load_dataset` reads every .arrow file there. It also renames the split
# "dev" to "validation". One would guess that it refuses the folder, as it refuses that of a single `Dataset` ("Please use
# `load_from_disk` instead"). It matters to training: every pair counts twice, half of them in another form.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
export HF_HOME="$d/home" HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1
python3 -m venv v
v/bin/pip install -q datasets==5.2.0
cat > run.py <<'P'
from importlib.metadata import version
from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
print("datasets", version("datasets"))
rows = Dataset.from_dict({"text": ["one", "two"]})
DatasetDict(train=rows, dev=rows).save_to_disk("saved")
before = load_dataset("./saved", cache_dir="a")
load_from_disk("saved").map(lambda row: {"text": row["text"].upper()})
after = load_dataset("./saved", cache_dir="b")
found = [list(before), sorted(before["train"]["text"]), sorted(after["train"]["text"])]
found.append(sorted(load_from_disk("saved")["train"]["text"]))
rows.save_to_disk("single")
try:
    load_dataset("./single")
    found.append("read")
except ValueError as error:
    found.append("load_from_disk" in str(error))
print(found)
expected = [["train", "validation"], ["one", "two"], ["ONE", "TWO", "one", "two"], ["one", "two"], True]
raise SystemExit(found != expected)
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described
