#!/bin/sh
# mlflow-skinny 3.17.2. A run that is given no name gets one of Python's global random generator ("bold-ape-12"): after
# random.seed(0), as every training script calls it, each run has the same name, and drawing the name advances the generator of
# the program. One would guess that names are drawn apart from the program's generator, as the run's id is (a UUID), so that
# naming changes nothing and two runs have two names. It matters because the runs of one seed cannot be told apart in a list,
# and because a program with tracking draws other random numbers than the same program without.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q mlflow-skinny==3.17.2 sqlalchemy==2.0.44 alembic==1.17.2
cat > run.py <<'P'
import logging, random
from importlib.metadata import version
logging.disable(logging.INFO)
import mlflow
print("mlflow-skinny", version("mlflow-skinny"))
mlflow.set_tracking_uri("sqlite:///runs.db")
names, ids, drawn = [], [], []
for _ in range(2):
    random.seed(0)
    with mlflow.start_run() as run:
        names.append(run.info.run_name), ids.append(run.info.run_id)
    drawn.append(random.random())
random.seed(0)
untracked = random.random()
print("names:", names, "ids:", ids)
print("first number after the seed:", untracked, "with a run in between:", drawn[0])
raise SystemExit(not (names[0] == names[1] and ids[0] != ids[1] and drawn[0] != untracked))
P
v/bin/python run.py || { echo changed; exit 1; }
echo as described
