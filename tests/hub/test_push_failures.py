"""Pushes that fail: true messages, nothing twice, nobody else's work overwritten."""

import os
from pathlib import Path

import pytest
from loopback_client import ADA, GRACE, READER, ask
from loopback_push import change_weights, client_upload, without_waits

from modeling_scratch.training.folder import WEIGHTS

NAME = "ada/model"


def client_lost(folder: str, faults: list[dict]) -> list:
    """Push with faults, and once more without."""
    without_waits()
    for fault in faults:
        ask("POST", "_loopback/fault", json=fault)
    first = client_upload(folder, NAME)
    ask("DELETE", "_loopback/fault")
    return [first, client_upload(folder, NAME)]


@pytest.mark.parametrize("there", [False, True], ids=["first", "second"])
def test_a_commit_that_arrived_unseen_is_known_again(there, hub, run, pushes):
    """Its answer is lost, and so is every look at the history: the next push knows its own commit."""
    if there:
        pushes()
        change_weights(run, 0.25)
    lost = [{"answer": "lose", "path": "/commit/main"}, {"answer": "drop", "path": "/commits/", "times": None}]
    first, second = pushes.client(client_lost, folder=str(run), faults=lost)
    assert first[0] == 2
    assert "the Hub cannot be asked whether it arrived" in first[1]
    assert second[0] == 0, second
    titles = [commit["title"] for commit in hub.commits(NAME)]
    assert titles.count("Upload model") == 1 + there
    assert hub.files(NAME)[WEIGHTS] == (run / WEIGHTS).read_bytes()


def test_somebody_commits_on_top_of_a_commit_whose_answer_is_lost(hub, run, pushes):
    hub.create(NAME)
    hub.fail("lose", path="/commit/main")
    hub.fail(lambda: hub.commit(NAME, {"theirs.txt": b"theirs"}, "Meanwhile"), path="/commits/")
    said = pushes(tag="v1")
    ours = next(commit["id"] for commit in hub.commits(NAME) if commit["title"] == "Upload model")
    assert ours in said
    assert hub.references(NAME)["refs/tags/v1"] == ours
    assert hub.files(NAME)["theirs.txt"] == b"theirs"


def test_a_list_of_commits_that_lags_behind_makes_no_second_commit(hub, run, pushes):
    hub.create(NAME)
    hub.fail("lag", path="/commits/", times=None)
    hub.fail("lose", path="/commit/main")
    said = pushes()
    assert hub.commits(NAME)[0]["id"] in said
    assert [commit["title"] for commit in hub.commits(NAME)] == ["Upload model", "initial commit"]


def test_what_nobody_could_see_is_not_called_nothing(hub, run, pushes):
    """The answer is lost, somebody else commits, and the second attempt is refused: a list that lags would look so."""
    hub.create(NAME)
    hub.fail("drop", path="/commit/main")
    hub.fail(lambda: hub.commit(NAME, {WEIGHTS: b"theirs"}, "Theirs"), path="/commit/main", at=2)
    said = pushes(code=2)
    assert "the Hub does not show it" in said
    assert "push again: what has arrived is not sent twice" in said
    assert "changed nothing" not in said


def test_a_commit_that_is_never_answered_is_not_waited_for_longer(hub, run, pushes):
    """Twice half of the limit, though the looks between are answered; it is named for what it is."""
    hub.create(NAME)
    hub.fail("silence", path="/commit/main", times=None)
    said = pushes(code=2, timeout=2)
    asked = [entry["time"] for entry in hub.requests if "/commit/main" in entry["path"]]
    assert len(asked) == 2
    assert asked[1] - asked[0] < 1 + 1 + 1  # half of the limit, the wait, and the look
    assert "the Hub does not show it (timed out); push again" in said


AFTER = {
    "full disk": "No space left on device",
    "refused tag": "tagging it 'v1': the Hub refused this for ada/model and changed nothing (403: Frozen)",
    "interrupt": "interrupted before all was recorded",
}


def client_after(folder: str, what: str) -> list[list]:
    """A push that something ends once its commit is there, and another."""
    from modeling_scratch.hub import push as push_record
    from modeling_scratch.hub import push as pushing
    from modeling_scratch.hub.repository import HubRepository

    commit, written = HubRepository.commit, pushing.write_whole
    arrived = []

    def note(*arguments, **options):
        arrived.append(commit(*arguments, **options))
        return arrived[0]

    def write(path: Path, text: str) -> None:
        if arrived and what == "interrupt":
            raise KeyboardInterrupt
        if arrived and what == "full disk":
            raise OSError(28, "No space left on device", str(path))
        written(path, text)

    HubRepository.commit, pushing.write_whole, push_record.write_whole = note, write, write
    first = client_upload(folder, NAME, tag="v1")
    HubRepository.commit, pushing.write_whole, push_record.write_whole = commit, written, written
    return [first, client_upload(folder, NAME, tag="v1")]


@pytest.mark.parametrize("what", AFTER)
def test_whatever_fails_after_the_commit_the_message_begins_with_where_the_model_is(what, hub, run, pushes):
    if what == "refused tag":
        hub.fail(403, path="/tag/", words="Frozen")
    (code, said), again = pushes.client(client_after, folder=str(run), what=what)
    commit = hub.commits(NAME)[0]["id"]
    assert code == (130 if what == "interrupt" else 2)
    line = said.strip().splitlines()[-1].removeprefix("error: ")
    assert line.startswith(f"the model is at {hub.url}/{NAME}/commit/{commit} (revision {commit}); "), line
    assert AFTER[what] in line
    assert again[0] == 0, again
    assert [entry["title"] for entry in hub.commits(NAME)] == ["Upload model", "initial commit"]
    assert hub.references(NAME)["refs/tags/v1"] == commit


REFUSALS = {
    "/repos/create": "making the repository",
    "/branch/": "making the branch",
    "/preupload/": "committing",
    "/commit/": "committing",
    "/tag/": "tagging it 'v1'",
}
REFUSED = [*((403, path) for path in REFUSALS), (412, "/commit/"), (409, "/tag/")]


def client_refused(folder: str, cases: list[tuple[int, str]]) -> list[list]:
    results = []
    for status, path in cases:
        ask("DELETE", "_loopback/fault")
        ask("POST", "_loopback/fault", json={"answer": status, "path": path, "words": f"Words of {path}"})
        results.append(client_upload(folder, f"{NAME}-{len(results)}", revision="b", tag="v1"))
    return results


def test_a_refusal_says_what_was_refused_and_why(hub, run, pushes):
    results = pushes.client(client_refused, folder=str(run), cases=REFUSED)
    for number, ((status, path), (code, said)) in enumerate(zip(REFUSED, results, strict=True)):
        refused = f"the Hub refused this for {NAME}-{number} and changed nothing ({status}: Words of {path})"
        assert code == 2, said
        assert f"{REFUSALS[path]}: {refused}" in said, said


def client_upload_with_xet(folder: str) -> list:
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_XET = False
    try:
        return client_upload(folder, NAME)
    finally:
        constants.HF_HUB_DISABLE_XET = True


def test_no_request_goes_past_the_client_that_has_a_limit(hub, run, pushes):
    """Not to Xet's own, where that is installed, either: this Hub knows no Xet."""
    code, said = pushes.client(client_upload_with_xet, folder=str(run))
    assert code == 0, said


def test_what_is_pushed_is_what_was_checked(hub, run, pushes):
    """The folder changes after the check: what was looked at goes."""
    checked = (run / WEIGHTS).read_bytes()
    hub.fail(lambda: change_weights(run, float("nan")), path="/repos/create")
    pushes()
    assert hub.files(NAME)[WEIGHTS] == checked


def test_a_damaged_record_and_a_folder_that_cannot_be_written(hub, run, pushes):
    for damaged in (
        "[]",
        '{"repositories": {"ada/other": {"main": {"kind": 1}}}}',
        '{"repositories": {"ada/other": []}}',
    ):
        (run / ".hub.json").write_text(damaged)
        assert ".hub.json: damaged" in pushes(code=2)
    (run / ".hub.json").unlink()
    (run / ".hub.json").mkdir()
    pushes(code=2)
    with pytest.raises(KeyError):
        hub.repository(NAME)


def test_mistakes_push_nothing(hub, client, run, tmp_path):
    hub.create("grace/model")
    hub.create("ada/taken")
    hub.commit("ada/taken", {"config.json": b"{}", WEIGHTS: b"theirs"}, "Somebody's model")
    hub.create("ada/public")
    mistakes = {
        "no token": ("", run, NAME, "there is no token: log in"),
        "invalid token": ("hf_Wrong0123456789abcdefghijklmnop", run, NAME, "the token is not valid"),
        "read token": (READER, run, NAME, "this token may only read"),
        "not a name": (ADA, run, "model", "it must be user/name"),
        "a wrong name": (ADA, run, "ada/mo del", "not a repository's name"),
        "another's": (GRACE, run, NAME, "belongs to ada, and you are grace"),
        "no model": (ADA, tmp_path, NAME, "holds no model"),
        "taken": (ADA, run, "ada/taken", "that was not pushed from this folder; scratch upload --overwrite"),
        "public": (ADA, run, "ada/public", "exists and is public"),
    }
    cases = [[token, str(folder), name, what == "public"] for what, (token, folder, name, _) in mistakes.items()]
    for (what, (*_, message)), (code, said) in zip(mistakes.items(), client(client_mistakes, cases=cases), strict=True):
        assert code == 2, (what, said)
        assert message in said, (what, said)
        assert len(said.strip().splitlines()) == 1, (what, said)
        assert "hf_" not in said, (what, said)
    assert hub.files("ada/taken")[WEIGHTS] == b"theirs"
    assert set(hub.files("ada/public")) == {".gitattributes"}
    with pytest.raises(KeyError):
        hub.repository(NAME)
    assert not (run / "README.md").exists()


def client_mistakes(cases: list[list]) -> list[list]:
    results = []
    for token, folder, repo_id, private in cases:
        os.environ["HF_TOKEN"] = token
        results.append(client_upload(folder, repo_id, private=private))
    return results


def test_somebody_else_s_commit_is_not_overwritten(hub, run, pushes):
    pushes()
    theirs = hub.commit(NAME, {WEIGHTS: b"theirs"}, "Better weights")
    change_weights(run, 0.25)
    assert f"has moved to {theirs[:7]}" in pushes(code=2)
    assert hub.files(NAME)[WEIGHTS] == b"theirs"
    # While we were on our way: between our look and our commit.
    pushes(overwrite=True)
    change_weights(run, 0.75)
    hub.fail(lambda: hub.commit(NAME, {"theirs.txt": b"theirs"}, "Meanwhile"), path="/commit/")
    said = pushes(code=2)
    assert "committing: the Hub refused this for ada/model and changed nothing (412: A commit has" in said
    assert hub.files(NAME)["theirs.txt"] == b"theirs"
    assert hub.files(NAME)[WEIGHTS] != (run / WEIGHTS).read_bytes()


def test_a_card_that_the_hub_refuses(hub, run, pushes):
    code, said = pushes.client(client_upload, folder=str(run), repo_id=NAME, license="foo")
    assert code == 2
    assert "committing: Invalid metadata in README.md" in said
    assert '"license" must be one of [' in said
    assert "Traceback" not in said
    assert WEIGHTS not in hub.files(NAME)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("- en\n", "- no\n", '"language[0]" must be a string'),  # as YAML reads it
        ("license: apache-2.0\n", "license: [mit]\n", '"license" must be a string'),
        ("license:", "base_model: /home/me/x\nlicense:", '"base_model" with value "/home/me/x" is not valid'),
    ],
)
def test_an_edited_card_that_the_hub_refuses(old, new, message, hub, run, pushes):
    pushes()
    commits = hub.commits(NAME)
    change_weights(run, 0.25)
    pushes.edit(old, new)
    hub.requests.clear()
    said = pushes(code=2)
    assert said.strip().splitlines()[-1].startswith(f"error: committing: Invalid metadata in README.md. - {message}")
    assert hub.commits(NAME) == commits
    assert "PUT" not in {entry["method"] for entry in hub.requests}  # no file was sent
