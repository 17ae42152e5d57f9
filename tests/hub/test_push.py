"""The push: files, card, branches, tags, pull requests, and pushes from a run."""

import json
from unittest.mock import patch

import pytest
from loopback_client import ADA, READER
from loopback_push import call, change_weights, client_train

from modeling_scratch.commands import upload
from modeling_scratch.hub.allowed_files import chosen_files
from modeling_scratch.training.folder import WEIGHTS

NAME = "ada/model"


def client_upload_checked(folder: str, **options) -> list:
    """As client_upload, with the check of what is in the folder."""
    from modeling_scratch.hub import check, push

    with patch.object(push, "check_folder", check.check_folder):
        return call(upload.main, folder, NAME, **options)


def test_the_command_pushes_exactly_what_was_chosen(hub, client, run):
    code, said = client(client_upload_checked, folder=str(run), tag="v1", message="First")
    assert code == 0, said
    (first, _) = hub.commits(NAME)
    assert first["title"] == "First"
    assert hub.references(NAME)["refs/tags/v1"] == first["id"]
    files = hub.files(NAME)
    assert files[WEIGHTS] == (run / WEIGHTS).read_bytes()
    assert set(files) - {".gitattributes"} == {*chosen_files(run), "README.md"}
    assert ADA not in files["README.md"].decode() + said


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
    recorded = json.loads((run / ".hub.json").read_text())["repositories"][NAME]["main"]
    assert (recorded["metadata"]["license"], recorded["metadata"]["library_name"]) == ("apache-2.0", "transformers")


def test_what_the_hub_ignores_is_pushed_all_the_same(hub, run, pushes):
    pushes()
    hub.commit(NAME, {".gitignore": b"*.safetensors\n*.png\ntokenizer*\n"}, "Ignore")
    weights = change_weights(run, 0.5)
    (run / "tokenizer.json").write_text((run / "tokenizer.json").read_text() + "\n")
    pushes(overwrite=True)
    files = hub.files(NAME)
    assert files[WEIGHTS] == weights
    assert files["tokenizer.json"] == (run / "tokenizer.json").read_bytes()


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


def test_edits_on_the_hub_stay_when_something_else_was_added_there(hub, run, pushes):
    pushes()
    hub.commit(NAME, {"README.md": f"{pushes.card()}\nTheirs.\n".encode(), "picture.png": b"theirs"}, "Add a picture")
    change_weights(run, 0.5)
    assert "has moved to" in pushes(code=2)
    pushes(overwrite=True)
    assert "Theirs." in pushes.card()
    assert hub.files(NAME)["picture.png"] == b"theirs"


def test_a_license_that_is_there_is_not_replaced(hub, run, pushes):
    hub.create(NAME)
    hub.commit(NAME, {"LICENSE": b"theirs"}, "A license")
    (run / "LICENSE").write_text("mine")
    assert "ada/model has its own LICENSE, with another content than the folder's" in pushes(code=2)
    assert WEIGHTS not in hub.files(NAME)
    (run / "LICENSE").write_text("theirs")
    pushes()
    (run / "LICENSE").write_text("mine")
    pushes()
    assert hub.files(NAME)["LICENSE"] == b"mine"


def test_files_in_other_folders_are_not_of_the_model(hub, run, pushes):
    others = {"scripts/evaluate.py": b"1", "onnx/decoder.onnx": b"2", "data/model.bin": b"3"}
    hub.create(NAME)
    hub.commit(NAME, others, "Theirs")
    (run / "NOTICES").mkdir()
    (run / "NOTICES" / "private.txt").write_text("mine")
    pushes()
    assert others.items() <= hub.files(NAME).items()
    assert "NOTICES/private.txt" not in hub.files(NAME)


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


def test_what_is_said_at_one_place_goes_to_new_ones_alone(hub, run, pushes):
    pushes(license="mit")
    pushes("ada/other")
    assert "license: mit" in pushes.card("ada/other")
    pushes("ada/third", license="gpl-3.0")
    pushes()
    assert "license: mit" in pushes.card()
    assert "license: gpl-3.0" in pushes.card("ada/third")


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


# -- from a run --------------------------------------------------------------------------------------------------------


def test_a_recipe_pushes_each_better_model_and_the_last(hub, client, tmp_path):
    run = tmp_path / "pushing"
    arguments = ["hub.repository=ada/pushed", "hub.push=best", "optimization.max_steps=10"]
    code, said = client(client_train, output_dir=str(run), arguments=arguments)
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
    arguments = ["hub.repository=ada/taken"]
    code, said = client(client_train, token=token, output_dir=str(run), arguments=arguments, overwrite=True)
    assert code == 2
    assert message in said
    assert (run / WEIGHTS).exists()
