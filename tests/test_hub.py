"""The push: whole or not at all under every fault, a line for every mistake, nobody else's work overwritten."""

import contextlib
import io
import itertools
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run_command
from loopback_client import ADA, GRACE, READER, digest, run_client, running_hub
from safetensors.torch import load_file, save_file

from modeling_scratch import folder_check
from modeling_scratch.run_folder import WEIGHTS

NAME = "ada/model"


@pytest.fixture
def hub(tmp_path):
    with running_hub(tmp_path) as hub:
        yield hub


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


def change_weights(run: Path, value: float) -> bytes:
    weights = load_file(run / WEIGHTS)
    weights["lm_head.bias" if "lm_head.bias" in weights else "model.encoder.layer_norm.bias"].fill_(value)
    save_file(weights, run / WEIGHTS, {"format": "pt"})
    return (run / WEIGHTS).read_bytes()


# -- the check ---------------------------------------------------------------------------------------------------------


def test_what_goes_and_what_stays(run):
    (run / "optimizer.pt").write_bytes(b"pickle")
    (run / ".env").write_text("HF_TOKEN=hf_secret")
    (run / "notes.py").write_text("import requests")
    chosen = set(folder_check.chosen_files(run))
    assert {"config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "curves.png", "stacks.py"} <= chosen
    assert not chosen & {"optimizer.pt", ".env", "notes.py", "metrics.jsonl", "recipe.yaml", "samples.md"}
    assert not any(name.startswith("checkpoints/") for name in chosen)


def damage(run: Path, how: str) -> None:
    config = json.loads((run / "config.json").read_text())
    if how == "nan":
        change_weights(run, float("nan"))
    elif how == "truncated":
        (run / WEIGHTS).write_bytes((run / WEIGHTS).read_bytes()[:-100])
    elif how == "imports":
        (run / "loss.py").write_text("import datasets\n" + (run / "loss.py").read_text())
    elif how == "neighbour":
        (run / "loss.py").unlink()
    elif how == "generation":
        (run / "generation_config.json").write_text(json.dumps({"num_beams": 1, "early_stopping": True}))
    elif how == "weights missing":
        weights = load_file(run / WEIGHTS)
        weights.pop("model.encoder.layers.0.self_attn.q_proj.weight")
        save_file(weights, run / WEIGHTS, {"format": "pt"})
    elif how == "other code":
        text = (run / "position_embeddings.py").read_text()
        (run / "position_embeddings.py").write_text(text.replace("10000.0", "20000.0"))
    elif how == "ties":
        (run / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))


DAMAGE = {
    "nan": "holds NaN or infinite values",
    "truncated": "cannot be read as safetensors, perhaps it is truncated",
    "imports": r"loss.py: line 1 imports datasets; code that travels may import",
    "neighbour": "loss.py is imported but missing",
    "generation": "generation_config.json",
    "weights missing": "missing",
    "other code": r"gives other positions.*logits \(by .*save it there again",
    "ties": "missing|tie_word_embeddings",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_wrong_with_a_folder_is_found(how, run):
    damage(run, how)
    with pytest.raises((ValueError, OSError), match=DAMAGE[how]):
        folder_check.check_folder(run)


# -- the push ----------------------------------------------------------------------------------------------------------


def test_push_change_push_again_and_load(hub, run, tmp_path):
    result = upload(hub, run, NAME, "--tag", "v1", "--message", "First")
    assert result.returncode == 0, result.stderr
    (first, _) = hub.commits(NAME)
    assert first["title"] == "First"
    assert hub.references(NAME)["refs/tags/v1"] == first["id"]
    files = hub.files(NAME)
    assert files[WEIGHTS] == (run / WEIGHTS).read_bytes()
    assert set(files) - {".gitattributes"} == {*folder_check.chosen_files(run), "README.md"}
    card = files["README.md"].decode()
    assert ADA not in card

    again = upload(hub, run, NAME)
    assert again.returncode == 0, again.stderr
    assert hub.commits(NAME)[0]["id"] == first["id"]  # no changes, no commit

    # A stranger, with nothing of this project, gets the same logits from the repository's name.
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

    # Edited on the Hub and in the folder: both edits stay, and new weights go.
    hub.commit(NAME, {"README.md": (card.replace("license: apache-2.0", "license: mit")).encode()}, "Edit the card")
    local = (run / "README.md").read_text()
    (run / "README.md").write_text(local + "\n## Thanks\n\nTo everybody.\n")
    weights = change_weights(run, 0.5)
    third = upload(hub, run, NAME)
    assert third.returncode == 0, third.stderr
    files = hub.files(NAME)
    assert files[WEIGHTS] == weights
    assert b"license: mit" in files["README.md"]
    assert b"To everybody." in files["README.md"]


def test_private_branches_and_pull_requests(hub, run):
    result = upload(hub, run, NAME, "--private", "--revision", "experiment")
    assert result.returncode == 0, result.stderr
    assert hub.repository(NAME).settings["private"]
    assert WEIGHTS in hub.files(NAME, "experiment")
    assert WEIGHTS not in hub.files(NAME)
    hub.create("grace/open")
    result = upload(hub, run, "grace/open", "--create-pr")
    assert result.returncode == 0, result.stderr
    assert WEIGHTS in hub.files("grace/open", "refs/pr/1")
    assert WEIGHTS not in hub.files("grace/open")


def call(hub_upload, folder: str, repo_id: str, **options) -> list:
    """[exit code, standard error]"""
    errors = io.StringIO()
    code = 0
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
        try:
            hub_upload.main(Path(folder), repo_id, **({"message": "Upload model"} | options))
        except SystemExit as exit:
            code = exit.code
    return [code, errors.getvalue()]


def test_mistakes_push_nothing(hub, run, tmp_path):
    hub.create("grace/model")
    hub.create("ada/taken")
    hub.commit("ada/taken", {"config.json": b"{}", WEIGHTS: b"theirs"}, "Somebody's model")
    hub.create("ada/public")
    mistakes = {
        "no token": ("", run, NAME, "there is no token: log in"),
        "invalid token": ("hf_wrong_0123456789", run, NAME, "the token is not valid"),
        "read token": (READER, run, NAME, "this token may only read"),
        "not a name": (ADA, run, "model", "it must be user/name"),
        "a wrong name": (ADA, run, "ada/mo del", "not a repository's name"),
        "another's": (GRACE, run, NAME, "belongs to ada, and you are grace"),
        "no run": (ADA, tmp_path, NAME, "is not a run's folder"),
        "taken": (ADA, run, "ada/taken", "that was not pushed from this folder; hub_upload.py --overwrite"),
        "public": (ADA, run, "ada/public", "exists and is public"),
    }
    cases = [[token, str(folder), name, what == "public"] for what, (token, folder, name, _) in mistakes.items()]
    for (what, (*_, message)), (code, said) in zip(
        mistakes.items(), run_client(hub, client_mistakes, cases=cases), strict=True
    ):
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


def client_upload(folder: str, repo_id: str, **options) -> list:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import hub_upload
    from modeling_scratch import hub as pushing

    pushing.check_folder = lambda folder: (folder_check.chosen_files(folder), [])
    return call(hub_upload, folder, repo_id, **options)


def test_no_network(run, tmp_path):
    with running_hub(tmp_path / "gone") as hub:
        environment = hub.environment(ADA, tmp_path / "home")
    result = run_command(str(ROOT / "hub_upload.py"), str(run), NAME, **environment)
    assert result.returncode == 2
    assert "no connection to the Hub" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_somebody_else_s_commit_is_not_overwritten(hub, run):
    assert run_client(hub, client_upload, folder=str(run), repo_id=NAME)[0] == 0
    theirs = hub.commit(NAME, {WEIGHTS: b"theirs"}, "Better weights")
    change_weights(run, 0.25)
    [code, said] = run_client(hub, client_upload, folder=str(run), repo_id=NAME)
    assert code == 2
    assert f"has moved to {theirs[:7]}" in said
    assert hub.files(NAME)[WEIGHTS] == b"theirs"
    # While we were on our way: between our look and our commit.
    [code, said] = run_client(hub, client_upload, folder=str(run), repo_id=NAME, overwrite=True)
    assert code == 0, said
    change_weights(run, 0.75)
    hub.fail(lambda: hub.commit(NAME, {"theirs.txt": b"theirs"}, "Meanwhile"), path="/commit/")
    [code, said] = run_client(hub, client_upload, folder=str(run), repo_id=NAME)
    assert code == 2
    assert "has changed meanwhile; nothing was overwritten" in said
    assert hub.files(NAME)["theirs.txt"] == b"theirs"


# -- faults ------------------------------------------------------------------------------------------------------------

FAULTS = {
    "drop": {"answer": "drop"},
    "lose": {"answer": "lose"},
    "cut": {"answer": "cut"},
    "500": {"answer": 500},
    "503": {"answer": 503, "html": True},
    "429": {"answer": 429, "retry_after": 1},
    "stall": {"answer": "stall", "seconds": 3},
}


def client_faults(folder: str, name: str, fault: dict) -> list[dict]:
    """For each n: push, change the weights, push with a fault at the n-th request, push again."""
    import httpx2
    from huggingface_hub import HfApi

    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import hub_upload
    from modeling_scratch import hub as pushing

    run, api, results = Path(folder), HfApi(), []
    files = folder_check.chosen_files(run)
    pushing.check_folder = lambda folder: (dict(files), [])
    time.sleep = lambda seconds: None  # waits between retries
    for number in itertools.count(1):
        repository = f"{name}-{number}"
        for leftover in (pushing.RECORD, pushing.CARD_BASE, "README.md"):
            (run / leftover).unlink(missing_ok=True)
        old = digest(change_weights(run, 2.0 * number))
        first = call(hub_upload, folder, repository)
        assert first[0] == 0, first
        new = digest(change_weights(run, 2.0 * number + 1))
        httpx2.delete(f"{api.endpoint}/_loopback/requests")
        httpx2.post(f"{api.endpoint}/_loopback/fault", json=fault | {"at": number})
        faulty = call(hub_upload, folder, repository)
        fired = any(entry["fault"] for entry in httpx2.get(f"{api.endpoint}/_loopback/requests").json())
        httpx2.delete(f"{api.endpoint}/_loopback/fault")
        after = api.repo_info(repository).sha
        retried = call(hub_upload, folder, repository)
        results.append({"repository": repository, "old": old, "new": new, "fired": fired, "after": after})
        results[-1] |= {"faulty": faulty, "retried": retried}
        if not fired:
            return results


@pytest.mark.parametrize("kind", FAULTS)
def test_old_or_new_whatever_fails(kind, hub, run, monkeypatch, capsys):
    """For every request of an upload: exactly the old revision or exactly the new one, and a retry makes it the new."""
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    results = run_client(hub, client_faults, folder=str(run), name="ada/m", fault=FAULTS[kind])
    failed = 0
    for result in results:
        repository, place = result["repository"], f"{kind}: {result}"
        commits = [commit["id"] for commit in hub.commits(repository)]
        marked = [commit["id"] for commit in hub.commits(repository) if commit["title"] == "Upload model"]
        old, new = hub.files(repository, marked[-1]), hub.files(repository, commits[0])
        assert len(marked) == 2, place  # the old and the new: none twice
        assert (digest(old[WEIGHTS]), digest(new[WEIGHTS])) == (result["old"], result["new"]), place
        assert hub.files(repository, result["after"]) in (old, new), place
        code, said = result["faulty"]
        assert code in (0, 2), place
        if code == 0:
            assert result["after"] == commits[0], place
        else:
            failed += 1
            lines = [line for line in said.strip().splitlines() if line.startswith("error:")]
            assert len(lines) == 1, place
        assert result["retried"][0] == 0, place
    assert not results[-1]["fired"]
    points = len(results) - 1
    assert points >= 8
    with capsys.disabled():
        print(
            f"\n{kind}: {points} fault points tried, {failed} ended the command, all left the old or the new revision"
        )


# -- from a run --------------------------------------------------------------------------------------------------------


def test_a_recipe_pushes(hub, tmp_path):
    from conftest import SMALL_RUN

    command = [str(ROOT / "train.py"), *SMALL_RUN, f"output_dir={tmp_path / 'pushing'}", "hub.repository=ada/pushed"]
    home = hub.store.root.parent / "home"
    result = run_command(*command, "hub.push=best", **(os.environ | hub.environment(ADA, home)))
    assert result.returncode == 0, result.stderr
    titles = [commit["title"] for commit in hub.commits("ada/pushed")]
    assert "Upload model" in titles
    assert any(title.startswith("Upload model of step") for title in titles)
    assert hub.files("ada/pushed")[WEIGHTS] == (tmp_path / "pushing" / WEIGHTS).read_bytes()
    refused = run_command(*command, "--overwrite", **(os.environ | hub.environment(READER, home)))
    assert refused.returncode == 2
    assert "this token may only read" in refused.stderr
    hub.create("ada/taken")
    hub.commit("ada/taken", {"config.json": b"{}", WEIGHTS: b"theirs"}, "Somebody's model")
    command[-1] = "hub.repository=ada/taken"
    refused = run_command(*command, "--overwrite", **(os.environ | hub.environment(ADA, home)))
    assert refused.returncode == 2
    assert "was not pushed from this folder" in refused.stderr
    assert (tmp_path / "pushing" / WEIGHTS).exists()  # refused before anything was deleted
