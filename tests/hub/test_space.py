"""A model's page goes to a static Space beside the model, linked both ways, one commit each."""

from pathlib import Path
from unittest.mock import patch

from huggingface_hub import ModelCard
from loopback_push import change_weights, client_upload

from modeling_scratch.hub.card import license_of
from modeling_scratch.training.folder import WEIGHTS
from modeling_scratch.training.records import run_of

NAME, SPACE = "ada/model", "ada/space--model"  # as the loopback Hub keeps a Space


def client_upload_with_stand_in(folder: str, repo_id: str, **options) -> list:
    """As client_upload, with a page that is made from the weights in no time."""
    from modeling_scratch.apps.web import space

    def write_page(name: str, page: Path, license: str | None) -> None:
        page.mkdir()
        (page / "license").write_text(str(license_of(Path(name), run_of(Path(name)), license)))
        (page / "index.html").write_text("<p>A page")
        (page / "model.json").write_text('{"title": "English to German"}')
        (page / "encoder.onnx").write_bytes((Path(name) / WEIGHTS).read_bytes())

    with patch.object(space, "export_page", write_page):
        return client_upload(folder, repo_id, **options)


def upload(client, run, code=0, **options) -> str:
    found, said = client(client_upload_with_stand_in, folder=str(run), repo_id=NAME, **options)
    assert found == code, said
    return said


def test_a_space_and_its_model_name_each_other(hub, client, run):
    said = upload(client, run, space=True)
    assert f"/spaces/{NAME}/commit/" in said
    files = hub.files(SPACE)
    assert {"index.html", "encoder.onnx", "model.json"} <= set(files)
    card = ModelCard(files["README.md"].decode())
    assert card.data.to_dict() | {"sdk": "static", "app_file": "index.html", "models": [NAME]} == card.data.to_dict()
    assert card.data.license == "apache-2.0"
    assert f"https://huggingface.co/{NAME}" in card.text
    assert f"https://huggingface.co/spaces/{NAME}" in hub.files(NAME)["README.md"].decode()
    assert (run / "README.md").read_bytes() == hub.files(NAME)["README.md"]
    assert len(hub.commits(NAME)) == len(hub.commits(SPACE)) == 2  # the Hub's own is the first

    assert upload(client, run, space=True).count("nothing has changed since") == 2
    change_weights(run, 0.25)
    upload(client, run)  # the model alone, whose card still names the Space
    assert f"https://huggingface.co/spaces/{NAME}" in hub.files(NAME)["README.md"].decode()
    assert hub.files(SPACE) == files
    upload(client, run, space=True)
    assert hub.files(SPACE)["encoder.onnx"] != files["encoder.onnx"]
    assert len(hub.commits(SPACE)) == 3


def test_the_page_of_a_private_model_is_private(hub, client, run):
    """It holds the weights."""
    upload(client, run, private=True)
    upload(client, run, space=True)
    assert hub.repository(SPACE).settings["private"]


def test_the_page_of_a_private_model_does_not_go_to_a_public_space(hub, client, run):
    upload(client, run, private=True)
    before = hub.commits(NAME)
    hub.create(SPACE)
    change_weights(run, 0.25)
    said = upload(client, run, code=2, space=True)
    assert f"spaces/{NAME} exists and is public; make it private in its settings, as the model is" in said
    assert hub.commits(NAME) == before


def test_the_license_is_that_of_the_model(hub, client, run):
    upload(client, run, space=True, license="cc-by-nc-4.0")
    assert "license: cc-by-nc-4.0" in hub.files(SPACE)["README.md"].decode()
    assert hub.files(SPACE)["license"] == b"cc-by-nc-4.0"
    edited = (run / "README.md").read_text().replace("license: cc-by-nc-4.0", "license: mit")
    (run / "README.md").write_text(edited)
    upload(client, run, space=True)
    for name in (NAME, SPACE):
        assert "license: mit" in hub.files(name)["README.md"].decode()
    assert hub.files(SPACE)["license"] == b"mit"
    (run / "README.md").write_text("---\nlicense: [mit, CC BY 4.0]\n---\n")
    assert license_of(run, run_of(run)) == "mit, CC BY 4.0"
    (run / "README.md").write_text("---\nlicense: [\n---\n")
    assert license_of(run, run_of(run)) == "apache-2.0"


def test_somebody_else_s_space_is_not_replaced(hub, client, run):
    hub.create(SPACE)
    before = hub.commit(SPACE, {"app.py": b"import gradio\n"})
    assert f"spaces/{NAME} holds something (app.py) that was not pushed from this folder" in upload(
        client, run, code=2, space=True
    )
    assert hub.commits(SPACE)[0]["id"] == before
    assert hub.store.find(NAME) is None  # its card would have named that page
    upload(client, run, space=True, overwrite=True)
    assert "app.py" not in hub.files(SPACE)


def test_a_card_that_was_edited_on_the_hub_stays(hub, client, run):
    upload(client, run, space=True)
    edited = hub.files(SPACE)["README.md"].replace("💬".encode(), "🐎".encode())
    hub.commit(SPACE, {"README.md": edited})
    change_weights(run, 0.25)
    upload(client, run, space=True)
    assert hub.files(SPACE)["README.md"] == edited


def test_options_that_do_not_go_with_it(hub, client, run):
    assert "--space pushes to main" in upload(client, run, code=2, space=True, tag="v1")
    assert hub.requests == []
