"""If any request of a push fails, the repository has the old or the new revision, and a second push succeeds."""

import re
import shutil
from itertools import count
from pathlib import Path

import pytest
from conftest import read_metrics
from loopback_client import MODEL, SHORT_RECIPE, change_weights, client_train, client_try_push, client_upload
from loopback_hub import ADA
from waiting import LONGEST

from modeling_scratch.run.folder import WEIGHTS

SPACE = f"spaces/{MODEL}"
# Kind of push: whose model is on the Hub before, the reference that the push changes, and its options.
PUSHES = {
    "a model": ("ours", "refs/heads/main", {}),
    "a new model": (None, "refs/heads/main", {}),
    "a model by Xet": ("ours", "refs/heads/main", {"xet": True}),
    "a branch and a tag": ("theirs", "refs/heads/experiment", {"revision": "experiment", "tag": "v1"}),
    "a pull request": ("theirs", "refs/pr/1", {"create_pr": True}),
    "a Space": ("ours", "refs/heads/main", {"space": True}),
    "during training": ("ours", "refs/heads/main", None),
}
FAULTS = {
    "reset": {"kind": "reset"},
    "reset forever": {"kind": "reset", "times": None},
    "lost response": {"kind": "lose"},
    "silence": {"kind": "silence"},
    "silence forever": {"kind": "silence", "times": None},
    "delay": {"kind": "delay", "seconds": 0.05},
    "500": {"kind": 500},
    "503 forever": {"kind": 503, "times": None},
    "refused": {"kind": 403, "times": None, "words": "No space left: {token}"},
}
FAST = {("a model", "lost response"), ("a model by Xet", "reset forever")}
CASES = [
    pytest.param(push, fault, id=f"{fault} at {push}", marks=[] if (push, fault) in FAST else pytest.mark.slow)
    for push in PUSHES
    for fault in FAULTS
]
# Seconds to wait for a response, and for a push by Xet, which repeats requests for longer: faults that would otherwise
# keep a push waiting end it, and a slow machine may end it as well.
SHORT = {fault: {"timeout": 0.3} for fault in ("silence", "silence forever")}
SHORT_BY_XET = {fault: {"deadline": 3.0} for fault in FAULTS if fault != "delay"}


@pytest.fixture
def stage(hub, client, run, tmp_path):
    """Prepares a kind of push and returns a function that resets the folder and the Hub."""

    def set_up(kind: str):
        before, _, options = PUSHES[kind]
        if options is None:  # during training, the options are in the recipe
            recipe = SHORT_RECIPE.replace("runs/trained", str(run))
            (run / "recipe.yaml").write_text(f"{recipe}hub: {{repository: {MODEL}, push: best}}\n")
        if before == "ours":
            change_weights(run, 1.0)
            code, output = client(client_upload, folder=str(run), repo_id=MODEL, space=kind == "a Space")
            assert code == 0, output
        elif before == "theirs":
            hub.create(MODEL)
            hub.commit(MODEL, {"config.json": b"{}", WEIGHTS: b"theirs"})
        change_weights(run, 2.0)
        saved, repositories = Path(shutil.copytree(run, tmp_path / "saved")), hub.snapshot()

        def reset() -> None:
            shutil.rmtree(run)
            shutil.copytree(saved, run)
            hub.repositories = repositories
            hub.repositories = hub.snapshot()
            hub.shards.clear()
            for blob in [blob for blob, content in hub.blobs.items() if len(content) > 50_000]:
                del hub.blobs[blob]  # otherwise large files would not be uploaded again
            hub.clear()

        return reset

    return set_up


def tips(hub, name: str) -> dict[str, list]:
    """The files at each reference of a repository, and the titles of its commits."""
    repository = hub.repositories.get(name)
    references = repository.references if repository else {}
    return {ref: [hub.tree(name, ref), hub.titles(name, ref)] for ref in references}


@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_a_push_is_whole_or_absent_and_can_be_repeated(kind, fault, stage, hub, client, run):
    reset, (_, changed, options) = stage(kind), PUSHES[kind]
    names = [MODEL, SPACE] if kind == "a Space" else [MODEL]

    def push(timeout: float = LONGEST, **more) -> list:
        if options is None:
            return client(client_try_push, folder=str(run), timeout=timeout)
        return client(client_upload, folder=str(run), repo_id=MODEL, timeout=timeout, **options | more)

    limits = SHORT.get(fault, {}) | (SHORT_BY_XET.get(fault, {}) if kind == "a model by Xet" else {})

    reset()
    old = {name: tips(hub, name).get(changed) for name in names}
    assert push()[0] == 0
    new = {name: tips(hub, name)[changed] for name in names}
    assert all(new[name] != old[name] for name in names)
    assert bool(hub.shards) == (kind == "a model by Xet")
    for number in count(1):
        reset()
        hub.fail(at=number, **FAULTS[fault])
        code, output = push(**limits)
        at = hub.faulty[:1]
        where = f"{at} {output}"
        assert ADA not in output, where
        arrived = []
        for name in names:
            now = tips(hub, name).get(changed)
            # A new repository starts with a commit of the Hub, and a new branch at main.
            is_first = now is not None and (WEIGHTS not in now[0] or now == tips(hub, name)["refs/heads/main"])
            assert now in (old[name], new[name]) or (old[name] is None and is_first), where
            arrived.append(now == new[name])
        failed = code != 0 or "not pushed" in output
        assert not (fault == "delay" and failed), where
        if failed and kind != "a Space":
            is_open = "at the old revision or the new one" in output or "model is at" in output
            assert is_open or not any(arrived), where
            assert "Traceback" not in output, where
        elif not failed:
            assert all(arrived), where
        hub.clear()
        if not at:
            break
        if kind == "a pull request" and any(arrived):
            continue  # a second push would open another one
        code, output = push()
        assert (code, "not pushed" in output) == (0, False), f"{where} then {output}"
        assert {name: tips(hub, name)[changed] for name in names} == new, f"{where} then {output}"  # nothing twice
        assert "already up to date" in output or not all(arrived), f"{where} then {output}"
        if kind == "a branch and a tag":
            assert tips(hub, MODEL)["refs/tags/v1"] == new[MODEL]
    assert number > (8 if kind == "a new model" else 10)


def test_training_continues_while_the_hub_does_not_respond(hub, client, tmp_path):
    hub.fail("silence", path="tree|preupload|repos/create", times=None)
    options = ["hub.repository=ada/silent", "hub.push=best", "hub.timeout=3", "optimization.max_steps=10"]
    code, output = client(client_train, output_dir=str(tmp_path / "run"), arguments=options)
    assert re.search("not pushed: .*--timeout", output), output
    assert "scratch upload" in output
    assert code == 2
    assert read_metrics(tmp_path / "run", "train")[-1]["step"] == 10


def test_an_upload_ends_at_its_deadline(hub, client, run):
    hub.fail("silence", path="preupload", times=None)
    code, output = client(client_upload, folder=str(run), repo_id=MODEL, deadline=0.5)
    assert code == 2
    assert "--deadline" in output
