"""Pushes under every fault at every request: they end, with the old revision or the new one, and a true message."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
from conftest import read_metrics
from loopback_client import ADA, MODEL, ask, digest
from loopback_fixtures import SHORT_RECIPE
from loopback_push import change_weights, client_train, client_upload, without_waits

from modeling_scratch.training.folder import WEIGHTS

# Seconds that a push may be left without an answer: few where a test waits for them.
LIMITS = {"silence": 0.5, "late": 2.0}
LIMIT = 10.0  # for the others, however busy the machine
PRIOR, NEW = 1.0, 2.0  # what the weights hold

# Name: what the repository holds already, and the flags of the push.
PUSHES = {
    "model": ("ours", {}),
    "branch and tag": (None, {"revision": "experiment", "tag": "v1"}),
    "pull request": ("theirs", {"create_pr": True}),
}
ONCE = {
    "drop": {"answer": "drop"},
    "lose": {"answer": "lose"},
    "cut": {"answer": "cut"},
    "halve": {"answer": "halve"},
    "delay": {"answer": "stall", "seconds": 0.1},
    "late": {"answer": "stall", "seconds": 1.2, "acted": True},
    "500": {"answer": 500},
    "503": {"answer": 503, "html": True},
    "504 acted": {"answer": 504, "acted": True},
    "429": {"answer": 429},
}
FROM_THEN_ON = {
    "silence": {"answer": "silence"},
    "down": {"answer": "drop"},
    "503 for ever": {"answer": 503, "html": True},
    "too many": {"answer": 429, "retry_after": 3600},
    "refused": {"answer": 403, "words": "Quota exceeded: {token}"},
}
FAULTS = ONCE | {name: fault | {"times": None} for name, fault in FROM_THEN_ON.items()}
DEFAULT = [("model", "lose"), ("branch and tag", "lose")]  # the others are slow


def restore(folder: Path, saved: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if saved.exists():
        shutil.copytree(saved, folder)


def client_faults(folder: str, repository: str, saved: str, fault: dict, limit: float, options: dict) -> list[dict]:
    """For each n: the repository and the run as they were, a push with a fault at its n-th request, and another one."""
    without_waits()
    results = []
    for number in itertools.count(1):
        restore(Path(repository), Path(saved) / "repository")
        restore(Path(folder), Path(saved) / "run")
        ask("DELETE", "_loopback/requests")
        ask("POST", "_loopback/fault", json=fault | {"at": number})
        faulty = client_upload(folder, MODEL, timeout=limit, debug=True, **options)
        result = {"faulty": faulty, "revisions": [revisions(Path(repository))]}
        requests = [entry for entry in ask("GET", "_loopback/requests").json() if entry["fault"]]
        ask("DELETE", "_loopback/fault")
        result["at"] = f"{requests[0]['method']} {requests[0]['path']}" if requests else None
        result["again"] = client_upload(folder, MODEL, **options)
        result["revisions"].append(revisions(Path(repository)))
        results.append(result)
        if not requests:
            return results


def revisions(repository: Path) -> dict[str, list]:
    """Each reference: its commits' titles and weights, newest first."""
    found = {}
    for path in sorted((repository / "refs").glob("*/*")):
        commits, commit = [], path.read_text()
        while commit:
            content = json.loads((repository / "commits" / f"{commit}.json").read_text())
            commits.append([content["title"], content["tree"].get(WEIGHTS, {}).get("sha256"), commit])
            commit = content["parent"]
        found[f"{path.parent.name}/{path.name}"] = commits
    return found


CASES = [
    pytest.param(push, name, id=f"{name} at a {push}", marks=[] if (push, name) in DEFAULT else pytest.mark.slow)
    for push in PUSHES
    for name in FAULTS
]


@pytest.fixture(scope="module")
def stage(trained, hub_and_client, tmp_path_factory):
    """For each kind of push, what is in the folder and on the Hub before it; tests set both back to that."""
    folder, (hub, client) = tmp_path_factory.mktemp("faults"), hub_and_client
    for name, (there, _) in PUSHES.items():
        saved = folder / "saved" / name
        run = Path(shutil.copytree(trained, folder / "run", ignore=shutil.ignore_patterns("checkpoints")))
        (run / "recipe.yaml").write_text(SHORT_RECIPE)
        change_weights(run, PRIOR)
        if there == "ours":
            assert client(client_upload, folder=str(run), repo_id=MODEL)[0] == 0
        elif there == "theirs":
            hub.create(MODEL)
            hub.commit(MODEL, {"config.json": b"{}", WEIGHTS: b"theirs"}, "Theirs")
        change_weights(run, NEW)
        shutil.move(run, saved / "run")
        if there:
            shutil.move(hub.repository(MODEL).folder, saved / "repository")
    yield hub, client, folder
    hub.clear()
    shutil.rmtree(hub.store.root / MODEL, ignore_errors=True)


@pytest.mark.parametrize(("push", "name"), CASES)
def test_old_or_new_whatever_fails(push, name, stage, capsys):
    hub, client, folder = stage
    results = client(
        client_faults,
        folder=str(folder / "run"),
        repository=str(hub.store.root / MODEL),
        saved=str(folder / "saved" / push),
        fault=FAULTS[name],
        limit=LIMITS.get(name, LIMIT),
        options=PUSHES[push][1],
    )
    new = digest((folder / "saved" / push / "run" / WEIGHTS).read_bytes())
    assert results[-1]["at"] is None  # a push without the fault
    assert len(results) > 8
    for result in results:
        where = json.dumps(result, indent=1)
        check = check_pull_request if push == "pull request" else check_commit
        check(result, push, new, where)
        (code, said), asks = result["faulty"], (result["at"] or "").startswith(("GET", "HEAD"))
        if name == "halve":
            assert code == 0 or not asks or "the Hub's answer could not be read; push again" in said, where
        else:
            assert code == 0 or name in FROM_THEN_ON or not asks, where  # what only asks asks again
        assert ADA not in said, where
    ended = sum(result["faulty"][0] != 0 for result in results)
    with capsys.disabled():
        print(f"\n{push}, {name}: {len(results) - 1} requests, {ended} ended the push", end="")


def check_commit(result: dict, push: str, new: str, where: str) -> None:
    """The branch is at the old revision or the new one, the message knows, and another push makes it the new one."""
    (code, said), (then, now) = result["faulty"], result["revisions"]
    made = {"model": "heads/main", "branch and tag": "heads/experiment"}[push]
    ours = [commit for commit in now[made] if commit[1] == new]
    assert result["again"][0] == 0, where
    assert len(ours) == 1, where  # none twice
    assert now[made][0] == ours[0], where
    assert push != "branch and tag" or now["tags/v1"] == now[made], where
    assert then.get(made, []) in ([], now[made][1:], now[made]), where
    if code == 0:
        assert then == now, where
    else:
        line = said.strip().splitlines()[-1]
        arrived, unknown = then.get(made) == now[made], "what has arrived is not sent twice" in line
        known = line.startswith("error: the model is at http://") and f"(revision {ours[0][2]})" in line
        assert known == arrived or unknown, where


def check_pull_request(result: dict, push: str, new: str, where: str) -> None:
    """There is one pull request or none, and the message knows; another push opens one."""
    (code, said), (then, now) = result["faulty"], result["revisions"]
    assert result["again"][0] == 0, where
    assert then["heads/main"] == now["heads/main"], where
    for revisions in (then, now):
        for reference in revisions.keys() - {"heads/main"}:
            assert reference.startswith("pr/"), where
            assert revisions[reference][0][1] == new, where
            assert revisions[reference][1:] == now["heads/main"], where
    arrived, unknown = len(then) - 1, "look whether the pull request is at http" in said
    assert len(now) == len(then) + 1, where
    assert arrived == (code == 0) or (arrived == 1 and unknown), where


def test_training_goes_on_while_the_hub_is_silent(hub, client, tmp_path):
    """From the check before it on, which made two requests."""
    hub.fail("silence", at=3, times=None)
    run = tmp_path / "run"
    options = ["hub.repository=ada/silent", "hub.push=best", "hub.timeout=1", "optimization.max_steps=10"]
    code, said = client(client_train, output_dir=str(run), arguments=options)
    silent = "asking who you are: the Hub has not answered within 1 seconds"
    assert f"while pushing: {silent}" in said
    assert f"error: {silent}; push again later. The model is whole in " in said
    assert "--timeout 1" in said
    assert code == 2
    assert read_metrics(run, "train")[-1]["step"] == 10
    pushes = said.count(silent)
    assert pushes > 1
    assert pushes < len(hub.requests) - 2 <= 4 * pushes  # several attempts each
