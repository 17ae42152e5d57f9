"""The push: whole or not at all under every fault, a line for every mistake, nobody else's work overwritten."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run_command
from loopback_client import ADA, GRACE, READER, running_hub
from loopback_push import change_weights, client_train, client_upload, without_waits

from modeling_scratch.hub.files import chosen_files
from modeling_scratch.runs.folder import WEIGHTS

NAME = "ada/model"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def upload(hub, *arguments: str, token: str | None = ADA, **environment: str):
    """hub_upload.py in a process of its own."""
    home = hub.store.root.parent / "home"
    result = run_command(
        str(ROOT / "hub_upload.py"), *map(str, arguments), **hub.environment(token, home), **environment
    )
    assert token is None or token not in result.stdout + result.stderr
    return result


def test_the_command_pushes_exactly_what_was_chosen(hub, run):
    result = upload(hub, run, NAME, "--tag", "v1", "--message", "First")
    assert result.returncode == 0, result.stderr
    (first, _) = hub.commits(NAME)
    assert first["title"] == "First"
    assert hub.references(NAME)["refs/tags/v1"] == first["id"]
    files = hub.files(NAME)
    assert files[WEIGHTS] == (run / WEIGHTS).read_bytes()
    assert set(files) - {".gitattributes"} == {*chosen_files(run), "README.md"}
    card = files["README.md"].decode()
    assert ADA not in card


@pytest.mark.slow
def test_a_stranger_loads_what_was_pushed(hub, run, client, tmp_path):
    """With nothing of this project, the same logits from the repository's name."""
    assert client(client_upload, folder=str(run), repo_id=NAME)[0] == 0
    script = """
import json, sys, torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoModelForTextEncoding, AutoTokenizer
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "modeling_scratch": raise ImportError(name)
sys.meta_path.insert(0, Refuse())
name = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True).eval()
inputs = tokenizer(["The cat sleeps.", "The dog can see her."], padding=True, return_tensors="pt")
target = torch.arange(6).repeat(2, 1)
AutoModel.from_pretrained(name, trust_remote_code=True)
AutoModelForTextEncoding.from_pretrained(name, trust_remote_code=True)
with torch.no_grad():
    logits = model(**inputs, decoder_input_ids=target).logits
print(json.dumps([inputs.input_ids.tolist(), logits.tolist(), model.generate(**inputs, max_new_tokens=6).tolist()]))
"""
    stranger = run_command("-c", script, NAME, **hub.environment(None, tmp_path / "stranger"))
    assert stranger.returncode == 0, stranger.stderr
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(run), AutoModelForSeq2SeqLM.from_pretrained(run).eval()
    inputs = tokenizer(["The cat sleeps.", "The dog can see her."], padding=True, return_tensors="pt")
    ids, logits, generated = json.loads(stranger.stdout.splitlines()[-1])
    assert ids == inputs.input_ids.tolist()
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=torch.arange(6).repeat(2, 1)).logits
    torch.testing.assert_close(torch.tensor(logits), expected, rtol=0, atol=1e-6)
    assert generated == model.generate(**inputs, max_new_tokens=6).tolist()


class Pushes:
    """Pushes of one folder, without the check of what is in it, all by one process."""

    def __init__(self, client, hub, run):
        self.client, self.hub, self.run = client, hub, run

    def __call__(self, repo_id: str = NAME, code: int = 0, **options) -> str:
        found, said = self.client(client_upload, folder=str(self.run), repo_id=repo_id, **options)
        assert found == code, said
        return said

    def card(self, name: str = NAME) -> str:
        return self.hub.files(name)["README.md"].decode()

    def edit(self, old: str, new: str) -> None:
        path = self.run / "README.md"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture
def pushes(client, hub, run):
    return Pushes(client, hub, run)


def test_edits_on_the_hub_and_in_the_folder_stay(hub, run, pushes):
    pushes()
    remote = pushes.card().replace("license: apache-2.0", "license: mit") + "\n## From the Hub\n\nHello.\n"
    hub.commit(NAME, {"README.md": remote.encode()}, "Edit the card")
    weights = change_weights(run, 0.5)
    pushes()
    assert hub.files(NAME)[WEIGHTS] == weights
    assert "license: mit" in pushes.card()
    assert "From the Hub" in pushes.card()
    assert (run / "README.md").read_text() == pushes.card()
    pushes.edit("license: mit", "license: gpl-3.0")
    pushes.edit("## From the Hub\n\nHello.\n", "Thanks to all.\n")
    pushes()
    assert "license: gpl-3.0" in pushes.card()
    assert "Thanks to all." in pushes.card()
    assert "From the Hub" not in pushes.card()


def test_edits_on_both_sides_are_for_the_user_to_choose_from(hub, run, pushes):
    pushes()
    hub.commit(NAME, {"README.md": f"{pushes.card()}\nTheirs.\n".encode()}, "Edit the card")
    pushes.edit("license: apache-2.0", "license: mit")
    assert "the model card was edited both on the Hub and in" in pushes(code=2)
    pushes(overwrite=True)
    assert "license: mit" in pushes.card()
    assert "Theirs." not in pushes.card()
    hub.commit(NAME, {"README.md": f"{pushes.card()}\nTheirs.\n".encode()}, "Edit the card")
    (run / "README.md").unlink()
    pushes()
    assert "Theirs." in pushes.card()


def test_each_push_generates_the_scores_anew_and_the_names_of_its_repository(run, pushes):
    pushes()
    pushes.edit("license: apache-2.0", "license: mit")
    pushes("ada/other")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    changed = [record | ({"bleu": 11.11} if record.get("final") else {}) for record in records]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in changed))
    pushes()
    assert pushes.card().count("11.11") == 2  # in the table and in the model-index
    assert 'from_pretrained("ada/model"' in pushes.card()
    assert "ada/other" not in pushes.card()
    assert "license: mit" in pushes.card()


def client_upload_as_earlier(folder: str, repo_id: str) -> list:
    """A push that leaves what earlier versions left: a card without marked parts, and another record."""
    from modeling_scratch.hub import card_edits

    def without_marks(card) -> str:
        front = card_edits.yaml_dump(card.metadata, sort_keys=False).strip()
        return f"---\n{front}\n---\n" + "".join((card.above, card.generated or "", card.below))

    marked = card_edits.EditableCard.__str__
    card_edits.EditableCard.__str__ = without_marks
    try:
        result = client_upload(folder, repo_id)
    finally:
        card_edits.EditableCard.__str__ = marked
    path = Path(folder) / ".hub.json"
    last = json.loads(path.read_text())["repositories"][repo_id]["main"] | {"parent": None}
    record = {"written": last["card"], "repositories": {repo_id: {"main": {"done": last}}}}
    path.write_text(json.dumps(record))
    (Path(folder) / ".card.md").write_text(last["card"])
    return result


@pytest.mark.parametrize("edited", [False, True], ids=["as generated", "edited"])
def test_a_folder_that_an_earlier_version_pushed(edited, hub, run, pushes):
    assert pushes.client(client_upload_as_earlier, folder=str(run), repo_id=NAME)[0] == 0
    if edited:
        pushes.edit("## Results", "My own words.\n\n## Results")
    weights = change_weights(run, 0.5)
    said = pushes()
    assert hub.files(NAME)[WEIGHTS] == weights
    assert ("the card's text is kept as it is" in said) == edited
    assert ("modeling_scratch: the next push replaces" in pushes.card()) != edited
    assert ("My own words." in pushes.card()) == edited
    assert not (run / ".card.md").exists()


def test_the_license_lasts(hub, run, pushes):
    pushes(license="mit")
    pushes()
    assert "license: mit" in pushes.card()
    pushes(license="gpl-3.0")
    assert "license: gpl-3.0" in pushes.card()


def test_private_branches_tags_and_pull_requests(hub, run, pushes):
    pushes(private=True)
    assert hub.repository(NAME).settings["private"]
    first = hub.files(NAME)
    change_weights(run, 0.5)
    pushes(revision="experiment", tag="v1")
    assert hub.files(NAME, "experiment")[WEIGHTS] == (run / WEIGHTS).read_bytes()
    assert hub.files(NAME) == first
    assert hub.references(NAME)["refs/tags/v1"] == hub.commits(NAME, "experiment")[0]["id"]
    pushes(revision="experiment", tag="v1")  # nothing new
    assert "the tag v1 exists, at" in pushes(code=2, tag="v1")
    hub.create("grace/open")
    hub.commit("grace/open", {"config.json": b"{}", "pytorch_model.bin": b"theirs", "notes.txt": b"theirs"}, "Theirs")
    pushes("grace/open", create_pr=True)
    assert [name for name in hub.references("grace/open") if "pr" in name] == ["refs/pr/1"]
    proposed = hub.files("grace/open", "refs/pr/1")
    assert proposed[WEIGHTS] == (run / WEIGHTS).read_bytes()
    assert "notes.txt" in proposed
    assert "pytorch_model.bin" not in proposed
    assert WEIGHTS not in hub.files("grace/open")
    for options in ({"tag": "a b"}, {"create_pr": True, "tag": "v2"}, {"message": " "}, {"revision": "-x"}):
        assert "error: --" in pushes(code=2, **options)


def test_what_replaces_a_model_leaves_nothing_of_it(hub, run, pushes):
    theirs = {"config.json": b"{}", "target_tokenizer/tokenizer.json": b"{}", "special_tokens_map.json": b"{}"}
    theirs |= {"added_tokens.json": b"{}", "model-00001-of-00002.safetensors": b"", "their_code.py": b"", "a.txt": b""}
    hub.create(NAME)
    hub.commit(NAME, theirs, "Theirs")
    pushes(code=2)
    pushes(overwrite=True)
    assert set(hub.files(NAME)) == {*chosen_files(run), "README.md", "a.txt", ".gitattributes"}
    # A file of the last push that the folder has no more.
    (run / "curves.png").unlink()
    pushes()
    assert "curves.png" not in hub.files(NAME)
    assert "curves.png" not in pushes.card()


def client_lost(folder: str, faults: list[dict]) -> list:
    """Push with faults, and once more without."""
    import httpx2
    from huggingface_hub import HfApi

    without_waits()
    for fault in faults:
        httpx2.post(f"{HfApi().endpoint}/_loopback/fault", json=fault)
    first = client_upload(folder, NAME)
    httpx2.delete(f"{HfApi().endpoint}/_loopback/fault")
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
    assert "it is not to be seen there" in said
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
    assert "it is not to be seen there (no answer for 1 seconds); push again" in said


AFTER = {
    ".hub.json": ("disk", "No space left on device"),
    "README.md": ("disk", "No space left on device"),
    "tag": ("refused", "tagging it 'v1': the Hub refused this for ada/model and changed nothing (403: Frozen)"),
    "silent tag": ("silent", "tagging it 'v1': the Hub has not answered within 0.5 seconds"),
    "Ctrl-C": ("interrupt", "interrupted before all was recorded"),
}


def client_after(folder: str, how: str, name: str) -> list[list]:
    """A push that something ends once its commit is there, and another."""
    from modeling_scratch.hub import push as pushing
    from modeling_scratch.hub import record as push_record

    commit, written = pushing.HubRepository.commit, pushing.write_whole
    arrived = []

    def note(*arguments, **options):
        arrived.append(commit(*arguments, **options))
        return arrived[0]

    def write(path: Path, text: str) -> None:
        if arrived and how == "interrupt":
            raise KeyboardInterrupt
        if arrived and how == "disk" and path.name == name:
            raise OSError(28, "No space left on device", str(path))
        written(path, text)

    pushing.HubRepository.commit, pushing.write_whole, push_record.write_whole = note, write, write
    first = client_upload(folder, NAME, tag="v1", timeout=0.5)
    pushing.HubRepository.commit, pushing.write_whole, push_record.write_whole = commit, written, written
    return [first, client_upload(folder, NAME, tag="v1")]


@pytest.mark.parametrize("name", AFTER)
def test_whatever_fails_after_the_commit_the_message_begins_with_where_the_model_is(name, hub, run, pushes):
    how, why = AFTER[name]
    if how == "refused":
        hub.fail(403, path="/tag/", words="Frozen")
    if how == "silent":
        hub.fail("silence", path="/tag/", times=4)
    (code, said), again = pushes.client(client_after, folder=str(run), how=how, name=name)
    commit = hub.commits(NAME)[0]["id"]
    assert code == (130 if how == "interrupt" else 2)
    line = said.strip().splitlines()[-1].removeprefix("error: ")
    assert line.startswith(f"the model is at {hub.url}/{NAME}/commit/{commit} (revision {commit}); "), line
    assert why in line
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
REFUSED = [(status, path) for status in (403, 412) for path in REFUSALS] + [(409, "/commit/"), (409, "/tag/")]


def client_refused(folder: str, cases: list[tuple[int, str]]) -> list[list]:
    import httpx2
    from huggingface_hub import HfApi

    control, results = f"{HfApi().endpoint}/_loopback/fault", []
    for status, path in cases:
        httpx2.delete(control)
        httpx2.post(control, json={"answer": status, "path": path, "words": f"Words of {path}"})
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
    (run / ".hub.json").write_text("[]")
    assert ".hub.json: damaged" in pushes(code=2)
    (run / ".hub.json").unlink()
    (run / "..hub.json.tmp").mkdir()
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
        "taken": (ADA, run, "ada/taken", "that was not pushed from this folder; hub_upload.py --overwrite"),
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


@pytest.mark.slow
def test_no_network(run, tmp_path):
    with running_hub(tmp_path / "gone") as hub:
        environment = hub.environment(ADA, tmp_path / "home")
    result = run_command(str(ROOT / "hub_upload.py"), str(run), NAME, "--timeout", "1", **environment)
    assert result.returncode == 2
    assert "no connection to the Hub" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


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


# -- from a run --------------------------------------------------------------------------------------------------------


def test_a_recipe_pushes_each_better_model_and_the_last(hub, client, tmp_path):
    run = tmp_path / "pushing"
    arguments = [f"output_dir={run}", "hub.repository=ada/pushed", "hub.push=best", "optimization.max_steps=10"]
    code, said = client(client_train, arguments=arguments)
    assert code == 0, said
    titles = [commit["title"] for commit in hub.commits("ada/pushed")]
    assert titles == ["Upload model", "Upload model of step 10", "initial commit"]
    assert hub.files("ada/pushed")[WEIGHTS] == (run / WEIGHTS).read_bytes()


@pytest.mark.parametrize(
    ("token", "message"),
    [(READER, "this token may only read"), (ADA, "was not pushed from this folder")],
    ids=["token", "repository"],
)
def test_a_recipe_s_push_that_would_fail_is_refused_before_anything_is_deleted(token, message, hub, client, run):
    hub.create("ada/taken")
    hub.commit("ada/taken", {"config.json": b"{}", WEIGHTS: b"theirs"}, "Somebody's model")
    arguments = [f"output_dir={run}", "hub.repository=ada/taken"]
    code, said = client(client_train, token=token, arguments=arguments, overwrite=True)
    assert code == 2
    assert message in said
    assert (run / WEIGHTS).exists()
