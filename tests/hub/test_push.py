"""A push: what it uploads, deletes and keeps, what it refuses, and what the next push does."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from foreign_models import scratch
from huggingface_hub import EvalResultEntry, parse_eval_result_entries
from loopback_client import MODEL, change_weights, client_train, client_upload
from loopback_hub import ADA, GRACE, READER
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_scratch import ScratchTranslationPipeline
from modeling_scratch.hub.allowed_files import EVAL_RESULTS, chosen_files
from modeling_scratch.hub.probe import HANDLER
from modeling_scratch.model.confidence import Confidence, NgramSet
from modeling_scratch.model.configuration_scratch import TEXT2TEXT, pipelines_for
from modeling_scratch.run.folder import WEIGHTS


def card(hub, name: str = MODEL) -> str:
    return hub.files(name)["README.md"].decode()


def edit_on_hub(hub, old: str, new: str) -> None:
    assert old in card(hub)
    hub.commit(MODEL, {"README.md": card(hub).replace(old, new).encode()})


def edit_in_folder(run: Path, old: str, new: str) -> None:
    text = (run / "README.md").read_text()
    assert old in text
    (run / "README.md").write_text(text.replace(old, new))


# -- what is pushed ----------------------------------------------------------------------------------------------------


def test_a_push_checks_the_allowed_files_and_uploads_them_in_one_commit(hub, client, run):
    code, output = client(client_upload, folder=str(run), repo_id=MODEL, check=True, tag="v1", message="First")
    assert code == 0, output
    assert hub.titles(MODEL) == ["First", "initial commit"]
    references = hub.repositories[MODEL].references
    assert references["refs/tags/v1"] == references["refs/heads/main"]
    assert f'revision="{references["refs/heads/main"]}"' in output
    files = hub.files(MODEL)
    assert files[WEIGHTS] == (run / WEIGHTS).read_bytes()
    assert set(files) - {".gitattributes"} == {*chosen_files(run), "README.md"}
    assert files["README.md"] == (run / "README.md").read_bytes()
    assert ADA not in files["README.md"].decode() + output


def test_unchanged_content_makes_no_commit(hub, run, push):
    push()
    commit = hub.repositories[MODEL].resolve("main")
    hub.requests.clear()
    assert "already up to date" in push()
    assert hub.repositories[MODEL].resolve("main") == commit
    assert {request.split()[0] for request in hub.requests} == {"GET"}
    (run / ".hub.json").unlink()  # what the folder remembers of its pushes
    assert "already up to date" in push()


def test_a_push_uploads_what_was_checked_even_if_the_folder_changes(hub, run, push):
    checked = (run / WEIGHTS).read_bytes()
    hub.fail(lambda: change_weights(run, float("nan")), path="/repos/create")
    push()
    assert hub.files(MODEL)[WEIGHTS] == checked


def test_a_push_deletes_files_the_model_no_longer_has_and_keeps_foreign_ones(hub, run, push):
    push()
    others = {"scripts/evaluate.py": b"1", "onnx/decoder.onnx": b"2", "picture.jpg": b"3"}
    hub.commit(MODEL, others)
    (run / "curves.png").unlink()
    push()
    assert others.items() <= hub.files(MODEL).items()
    assert "curves.png" not in hub.files(MODEL)
    assert "curves.png" not in card(hub)


def test_a_push_to_a_branch_with_a_tag_leaves_main_unchanged(hub, run, push):
    push(private=True)
    assert hub.repositories[MODEL].private
    first = hub.tree(MODEL)
    change_weights(run, 0.5)
    for _ in range(2):  # a repeated push finds its own branch and tag
        push(revision="experiment", tag="v1")
        assert hub.files(MODEL, "experiment")[WEIGHTS] == (run / WEIGHTS).read_bytes()
        assert hub.tree(MODEL) == first
        assert hub.tree(MODEL, "v1") == hub.tree(MODEL, "experiment")
    assert "tag v1 exists" in push(code=2, tag="v1")


def test_a_pull_request_replaces_the_model_of_others_and_keeps_their_other_files(hub, run, push):
    hub.create("grace/open")
    hub.commit("grace/open", {"config.json": b"{}", "pytorch_model.bin": b"theirs", "notes.txt": b"theirs"})
    assert "/discussions/1" in push("grace/open", create_pr=True)
    proposed = hub.files("grace/open", "refs/pr/1")
    assert proposed[WEIGHTS] == (run / WEIGHTS).read_bytes()
    assert "notes.txt" in proposed
    assert "pytorch_model.bin" not in proposed
    assert WEIGHTS not in hub.files("grace/open")


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_files_of_others_are_only_overwritten_on_request(hub, run, push):
    hub.create(MODEL)
    hub.commit(
        MODEL, {"config.json": b"{}", "target_tokenizer/tokenizer.json": b"{}", "their_code.py": b"", "a.txt": b""}
    )
    assert "--overwrite" in push(code=2)
    assert hub.files(MODEL)["config.json"] == b"{}"
    push(overwrite=True)
    assert set(hub.files(MODEL)) == {*chosen_files(run), "README.md", "a.txt", ".gitattributes"}
    hub.commit(MODEL, {WEIGHTS: b"better"})
    change_weights(run, 0.25)
    assert WEIGHTS in push(code=2)
    assert hub.files(MODEL)[WEIGHTS] == b"better"


def test_a_commit_of_others_during_a_push_stops_it(hub, run, push):
    push()
    change_weights(run, 0.75)
    hub.fail(lambda: hub.commit(MODEL, {"theirs.txt": b"theirs"}), path="/commit/")
    assert "412" in push(code=2)
    assert hub.files(MODEL)[WEIGHTS] != (run / WEIGHTS).read_bytes()
    push()
    assert hub.files(MODEL)["theirs.txt"] == b"theirs"


def test_a_license_file_of_others_is_not_replaced(hub, run, push):
    hub.create(MODEL)
    hub.commit(MODEL, {"LICENSE": b"theirs"})
    (run / "LICENSE").write_text("mine")
    assert "LICENSE" in push(code=2)
    (run / "LICENSE").write_text("theirs")
    push()
    (run / "LICENSE").write_text("mine")
    push()
    assert hub.files(MODEL)["LICENSE"] == b"mine"


def test_a_mistake_is_one_line_and_changes_nothing(hub, run, push):
    """More of them, found without the Hub, are in tests/commands/bad_input.txt."""
    hub.create("ada/public")
    mistakes = [
        ({"token": ""}, "no token"),
        ({"token": "hf_Wrong0123456789abcdefghijklmnop"}, "not valid"),
        ({"token": READER}, "read permission"),
        ({"token": GRACE}, "belongs to ada"),
        ({"repo_id": "ada/public", "private": True}, "is public"),
        ({"repo_id": "grace/none", "create_pr": True}, "does not exist"),
        ({"space": True, "tag": "v2"}, "--space"),
    ]
    for options, word in mistakes:
        output = push(code=2, **options)
        assert word in output
        assert len(output.strip().splitlines()) == 1
        assert "hf_W" not in output
    assert set(hub.repositories) == {"ada/public"}
    assert hub.titles("ada/public") == ["initial commit"]
    assert not (run / "README.md").exists()


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("repos/create", "creating the repository"),
        ("/branch/", "creating the branch"),
        ("/preupload/", "committing"),
        ("/commit/", "committing"),
        ("/tag/", "the model is at"),
    ],
)
def test_a_refusal_by_the_hub_names_the_step_and_the_reason(path, step, hub, run, push):
    hub.fail(403, path=path, words="Frozen for {token}")
    line = push(code=2, revision="b", tag="v1").strip().splitlines()[-1]
    assert line.startswith(f"error: {step}")
    assert "403: Frozen for <token>" in line
    push(revision="b", tag="v1")
    assert hub.titles(MODEL, "v1") == ["Upload model", "initial commit"]


def test_a_card_that_the_hub_refuses_stops_the_push(hub, run, push):
    assert "license" in push(code=2, license="foo")
    push()
    edit_in_folder(run, "license: apache-2.0", "license: [mit]")
    change_weights(run, 0.25)
    hub.requests.clear()
    assert "license" in push(code=2)
    assert not any(request.startswith("PUT") for request in hub.requests)
    assert hub.titles(MODEL) == ["Upload model", "initial commit"]


# -- edits of the card -------------------------------------------------------------------------------------------------


def test_edits_on_the_hub_or_in_the_folder_survive_a_push(hub, run, push):
    push()
    edit_on_hub(hub, "license: apache-2.0", "license: mit\nthumbnail: a.png")
    hub.commit(MODEL, {"README.md": (card(hub) + "\n## From the Hub\n").encode()})
    change_weights(run, 0.5)
    push()
    for text in (card(hub), (run / "README.md").read_text()):
        assert "license: mit" in text
        assert "thumbnail: a.png" in text
        assert "## From the Hub" in text
    edit_in_folder(run, "license: mit", "license: gpl-3.0")
    edit_in_folder(run, "## From the Hub", "Thanks to all.")
    push()
    assert "license: gpl-3.0" in card(hub)
    assert "Thanks to all." in card(hub)
    assert "From the Hub" not in card(hub)


def test_edits_on_both_sides_stop_the_push(hub, run, push):
    push()
    edit_on_hub(hub, "license: apache-2.0", "license: mit")
    edit_in_folder(run, "license: apache-2.0", "license: gpl-3.0")
    assert "edited both" in push(code=2)
    push(overwrite=True)
    assert "license: gpl-3.0" in card(hub)
    edit_on_hub(hub, "license: gpl-3.0", "license: mit")
    (run / "README.md").unlink()
    push()
    assert "license: mit" in card(hub)


def test_the_generated_part_is_updated_and_names_its_own_repository(hub, run, push):
    push(license="mit")
    push("ada/other")
    assert "license: mit" in card(hub, "ada/other")  # from the folder's card
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    changed = [record | ({"bleu": 11.11} if record.get("final") else {}) for record in records]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in changed))
    push()
    assert card(hub).count("11.11") == 2  # in the table and in the model-index
    assert 'from_pretrained("ada/model"' in card(hub)
    assert "ada/other" not in card(hub)


def test_later_pushes_remember_license_languages_and_author(hub, client, make_model, tmp_path):
    folder = tmp_path / "plain"
    make_model().save_pretrained(folder)
    given = {"license": "cc-by-4.0", "languages": ["en", "de"], "author": "Ada"}
    for options in (given, {}):
        code, output = client(client_upload, folder=str(folder), repo_id=MODEL, **options)
        assert code == 0, output
    assert hub.titles(MODEL) == ["Upload model", "initial commit"]
    for text in ("license: cc-by-4.0", "- de\n", "Author: Ada. Shared by [ada]"):
        assert text in card(hub)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_folder_pushed_by_version_0_1_0_is_updated_if_its_commit_is_known(is_known, hub, run, push):
    """Since then, the card was edited on the Hub and the model trained further."""
    push()
    text = card(hub)
    pushed = {"commit": hub.repositories[MODEL].resolve("main") if is_known else "0" * 40, "card": text, "mark": ""}
    pushed |= {"parent": None, "metadata": {}, "files": [], "license": None, "languages": None, "author": "Ada"}
    edit_on_hub(hub, "license: apache-2.0", "license: mit")
    (run / ".hub.json").write_text(json.dumps({"repositories": {MODEL: {"main": pushed}}}))
    (run / "README.md").write_text(text)
    change_weights(run, 0.5)
    push(code=0 if is_known else 2)
    if is_known:
        assert "license: mit" in card(hub)
        assert "Author: Ada." in card(hub)
        assert hub.files(MODEL)[WEIGHTS] == (run / WEIGHTS).read_bytes()


# -- from a run --------------------------------------------------------------------------------------------------------


def test_a_recipe_pushes_every_best_model_and_the_final_one(hub, client, tmp_path):
    run = tmp_path / "pushing"
    arguments = ["hub.repository=ada/pushed", "hub.push=best", "optimization.max_steps=10"]
    hub.fail("lose", path="/commit/")  # the commit of the best model arrives; the last push recognizes it as its own
    code, output = client(client_train, output_dir=str(run), arguments=arguments)
    assert code == 0, output
    assert hub.titles("ada/pushed") == ["Upload model", "Upload model of step 10", "initial commit"]
    assert hub.files("ada/pushed")[WEIGHTS] == (run / WEIGHTS).read_bytes()


@pytest.mark.parametrize(("token", "word"), [(READER, "read permission"), (ADA, "--overwrite")])
def test_a_push_that_would_fail_is_refused_before_training(token, word, hub, client, run):
    hub.create("ada/taken")
    hub.commit("ada/taken", {"config.json": b"{}", WEIGHTS: b"theirs"})
    arguments = ["hub.repository=ada/taken"]
    code, output = client(client_train, token=token, output_dir=str(run), arguments=arguments, overwrite=True)
    assert code == 2
    assert word in output
    assert (run / WEIGHTS).exists()  # the old run was not deleted


# -- the Space of a model ----------------------------------------------------------------------------------------------

SPACE = f"spaces/{MODEL}"


def test_a_space_and_its_model_link_to_each_other(hub, run, push):
    assert f"/spaces/{MODEL}/commit/" in push(space=True)
    files = hub.files(SPACE)
    assert files["encoder.onnx"] == (run / WEIGHTS).read_bytes()
    text = files["README.md"].decode()
    for line in ("sdk: static", "app_file: index.html", f"- {MODEL}", "license: apache-2.0"):
        assert line in text
    assert f"https://huggingface.co/{MODEL}" in text
    assert f"https://huggingface.co/spaces/{MODEL}" in card(hub)
    assert len(hub.titles(MODEL)) == len(hub.titles(SPACE)) == 2
    assert push(space=True).count("already up to date") == 2
    change_weights(run, 0.25)
    push()  # without the Space, which the card still names
    assert f"https://huggingface.co/spaces/{MODEL}" in card(hub)
    assert hub.files(SPACE) == files
    hub.commit(SPACE, {"README.md": files["README.md"].replace("💬".encode(), "🐎".encode())})
    push(space=True, license="cc-by-nc-4.0")
    assert hub.files(SPACE)["encoder.onnx"] == (run / WEIGHTS).read_bytes()
    assert hub.files(SPACE)["license"] == b"cc-by-nc-4.0"
    assert "🐎".encode() in hub.files(SPACE)["README.md"]


def test_a_space_of_others_is_not_replaced(hub, run, push):
    hub.create(SPACE)
    hub.commit(SPACE, {"app.py": b"import gradio\n"})
    assert "app.py" in push(code=2, space=True)
    assert hub.titles(SPACE)[0] == "Somebody's commit"
    assert MODEL not in hub.repositories  # whose card would have linked to that page
    push(space=True, overwrite=True)
    assert "app.py" not in hub.files(SPACE)


# -- the Marian model beside a model -----------------------------------------------------------------------------------

MARIAN = "ada/model-marian"


@pytest.fixture
def marian_run(run) -> Path:
    """The folder `run` with a model that Marian can express."""
    model = scratch(vocab_size=len(AutoTokenizer.from_pretrained(run)))
    model.generation_config.update(max_new_tokens=10, no_repeat_ngram_size=1)
    model.save_pretrained(run)
    (run / "LICENSE").write_text("Apache")
    return run


@pytest.mark.parametrize("check", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_marian_model_beside_a_model_gives_the_same_without_remote_code(
    check, hub, push, marian_run, tmp_path, capsys, monkeypatch
):
    output = push(marian=MARIAN, check=check)
    assert hub.titles(MODEL) == hub.titles(MARIAN) == ["Upload model", "initial commit"]
    assert re.search(rf'from_pretrained\("{MARIAN}", revision="\w+"\)\n', output)
    files = hub.files(MARIAN)
    expected = {"config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"}
    assert set(files) - {".gitattributes"} == expected | {"LICENSE", "README.md"}
    assert f"https://huggingface.co/{MARIAN}" in card(hub)
    text = card(hub, MARIAN)
    assert f"base_model: {MODEL}\n" in text
    assert "trust_remote_code" not in text
    for name, content in files.items():
        (tmp_path / MARIAN / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / MARIAN / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    assert type(AutoModelForSeq2SeqLM.from_pretrained(MARIAN)).__name__ == "MarianMTModel"
    single, batch = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(single, names)
    exec(batch, names)
    original = AutoModelForSeq2SeqLM.from_pretrained(marian_run).generate(**names["inputs"])
    translations = names["tokenizer"].batch_decode(original, skip_special_tokens=True)
    assert capsys.readouterr().out == f"{translations[0]}\n{translations}\n"


def test_nothing_is_pushed_unless_both_repositories_may_be(hub, marian_run, push):
    for name in (MODEL, MARIAN):
        hub.create(name)
        hub.commit(name, {"config.json": b"{}"})
        assert f"{name} holds config.json" in push(code=2, marian=MARIAN)
        assert set(hub.repositories) == {name}
        assert hub.titles(name)[0] == "Somebody's commit"
        hub.repositories.clear()
    push(marian=MARIAN)
    assert push(marian=MARIAN).count("already up to date") == 2
    before = hub.tree(MARIAN)
    hub.commit(MARIAN, {"README.md": card(hub, MARIAN).encode() + b"\n## By the owner\n"})
    change_weights(marian_run, 0.25)
    push()  # without the Marian model, which the card still names
    assert f"https://huggingface.co/{MARIAN}" in card(hub)
    assert hub.tree(MARIAN)[WEIGHTS] == before[WEIGHTS]
    push(marian=MARIAN)
    assert hub.tree(MARIAN)[WEIGHTS] != before[WEIGHTS]
    assert "## By the owner" in card(hub, MARIAN)
    assert "## By the owner" not in (marian_run / "README.md").read_text()


def test_pushes_with_a_marian_model_remember_what_was_given_last(hub, marian_run, push):
    push(marian=MARIAN, author="Old Name", languages=("en", "de"))
    push(marian="ada/second", author="New Name", languages=("en", "fr"), space=True)
    push()
    assert "https://huggingface.co/ada/second" in card(hub)
    assert "New Name" in card(hub)
    assert "\n- fr\n" in card(hub)
    assert f"spaces/{MODEL}" in card(hub)


def test_the_card_names_only_the_marian_model_of_its_own_repository(hub, marian_run, push):
    push("ada/secret", marian="ada/secret-marian", private=True)
    push()
    assert "secret" not in card(hub)
    assert "ada/secret-marian is the repository of this model as a Marian model" in push("ada/secret-marian", code=2)


def test_the_marian_model_has_the_license_that_the_owner_gave_its_model_on_the_hub(hub, marian_run, push):
    push(license="apache-2.0")
    edited = card(hub).replace("license: apache-2.0", "license: cc-by-nc-4.0")
    hub.commit(MODEL, {"README.md": edited.encode()})
    push(marian=MARIAN)
    assert "\nlicense: cc-by-nc-4.0\n" in card(hub)
    assert "\nlicense: cc-by-nc-4.0\n" in card(hub, MARIAN)


def test_a_model_that_marian_cannot_express_is_refused_in_one_line(hub, run, push):
    (line,) = push(code=2, marian=MARIAN).strip().splitlines()
    assert line.startswith("error: --marian: Marian cannot express this model: norm_position is 'pre' and must be")
    assert line.endswith("leave out --marian")
    assert hub.repositories == {}


def test_the_space_and_the_marian_model_of_a_private_model_are_private(hub, marian_run, push):
    push(private=True)
    before = hub.snapshot()
    push(space=True, marian=MARIAN)
    assert hub.repositories[SPACE].private
    assert hub.repositories[MARIAN].private
    hub.repositories = before
    hub.create(SPACE)
    change_weights(marian_run, 0.25)
    assert "is public" in push(code=2, space=True)
    assert hub.titles(MODEL) == ["Upload model", "initial commit"]


# -- handler.py and evaluation results ---------------------------------------------------------------------------------

# What the toolkit of Inference Endpoints does with a repository, and each of its requests.
ENDPOINT = """
import importlib.util, json, sys
folder, requests = sys.argv[1], json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location("handler.EndpointHandler", f"{folder}/handler.py")
sys.path.insert(0, folder)
module = importlib.util.module_from_spec(spec)
sys.modules["handler.EndpointHandler"] = module
spec.loader.exec_module(module)
handler = module.EndpointHandler(folder)
print(json.dumps([handler(request) for request in requests]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translation", pytest.param(TEXT2TEXT, marks=pytest.mark.slow)])
def test_a_pushed_handler_answers_requests_of_the_hub_s_tasks(task, hub, push, run, tmp_path):
    if task == TEXT2TEXT:
        config = json.loads((run / "config.json").read_text()) | {"custom_pipelines": pipelines_for(task)}
        (run / "config.json").write_text(json.dumps(config))
    push(endpoint_handler=True, check=task == TEXT2TEXT)
    endpoint = tmp_path / "endpoint"
    endpoint.mkdir()
    for name, content in hub.files(MODEL).items():
        (endpoint / name).write_bytes(content)
    texts, beams = ["The cat sleeps.", "We run."], {"num_beams": 3, "num_return_sequences": 2}
    requests = [{"inputs": texts[0]}, {"inputs": texts, "parameters": None}, {"inputs": texts, "parameters": beams}]
    requests.append({"inputs": texts, "parameters": {"generate_parameters": beams}})
    command = [sys.executable, "-P", "-c", ENDPOINT, str(endpoint), json.dumps(requests)]
    answered = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"HF_HOME": str(tmp_path)})
    assert answered.returncode == 0, answered.stderr
    one, several, *best = json.loads(answered.stdout.splitlines()[-1])
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    pipeline = ScratchTranslationPipeline(model=model, tokenizer=tokenizer)
    assert one == pipeline(texts[0])
    assert one[0].keys() == {"translation_text" if task == "translation" else "generated_text"}
    assert several == pipeline(texts)
    expected = [[result[pipeline._key] for result in row] for row in pipeline(texts, **beams)]
    assert [[[result[pipeline._key] for result in row] for row in answer] for answer in best] == [expected] * 2


def test_a_handler_stays_until_the_folder_s_is_deleted(hub, run, push):
    push()
    assert HANDLER not in hub.files(MODEL)
    push(endpoint_handler=True)
    (run / HANDLER).write_bytes(own := (run / HANDLER).read_bytes() + b"# changed\n")
    for options in ({}, {"endpoint_handler": True}):
        push(**options)
        assert hub.files(MODEL)[HANDLER] == own
    (run / HANDLER).unlink()
    push()
    assert HANDLER not in hub.files(MODEL)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (run / name).unlink()
    assert "leave out --endpoint-handler" in push(code=2, endpoint_handler=True)


def test_a_handler_of_a_pull_request_stays_in_the_folder(hub, run, push):
    push()
    push(endpoint_handler=True, create_pr=True)
    assert (run / HANDLER).is_file()


def test_the_score_of_a_benchmark_is_pushed_on_request_beside_results_of_others(hub, run, push):
    for recipe, benchmark, words in [
        ("", ["en_de", "bleu"], "no whole split of a data set on the Hub"),
        (
            "data: {name: ada/bench, subset: en-de, test: devtest}\n",
            ["en_de", "blue"],
            "no score 'blue', only bleu, chrf",
        ),
    ]:
        (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text() + recipe)
        assert words in push(code=2, benchmark=benchmark)
    (score,) = [record for record in map(json.loads, (run / "metrics.jsonl").open()) if record.get("final")]
    (run / "metrics.jsonl").write_text(json.dumps(score | {"chrf": 12.345}) + "\n")
    push(benchmark=["en_de", "chrf"])
    hub.commit(MODEL, {".eval_results/of_others.yaml": b"[]"})
    files = hub.files(MODEL)
    assert files[".eval_results/of_others.yaml"] == b"[]"
    (found,) = parse_eval_result_entries(yaml.safe_load(files[EVAL_RESULTS]))
    link, notes = f"https://huggingface.co/{MODEL}", f"chrF, {score['chrf_signature']}"
    assert found == EvalResultEntry("ada/bench", "en_de", 12.35, source_url=link, source_name="Model card", notes=notes)
    push()
    assert EVAL_RESULTS not in hub.files(MODEL)
    assert ".eval_results/of_others.yaml" in hub.files(MODEL)


# -- models in memory --------------------------------------------------------------------------------------------------


def client_push_from_memory(folder: str) -> None:
    from huggingface_hub import ModelCard
    from transformers import AutoModelForSeq2SeqLM

    card = ModelCard("---\nlicense: mit\n---\n# Edited by hand\n")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.push_to_hub(MODEL, commit_message="First")
    card.push_to_hub(MODEL)
    model.push_to_hub(MODEL)


def test_push_to_hub_of_transformers_uploads_the_code_and_keeps_the_card(hub, client, run):
    client(client_push_from_memory, folder=str(shutil.copytree(run, run.parent / "copy")))
    assert hub.titles(MODEL)[-2:] == ["First", "initial commit"]
    assert "# Edited by hand" in card(hub)
    assert {"modeling_scratch.py", "translation_pipeline.py", WEIGHTS} <= set(hub.files(MODEL))


def client_save_and_push(folder: str) -> None:
    from huggingface_hub import HfApi
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(MODEL)
    HfApi().whoami()
    model.save_pretrained(folder)
    HfApi().whoami()
    model.save_pretrained(folder, push_to_hub=True, repo_id="ada/tuned")


def test_a_model_from_the_hub_is_saved_and_pushed_with_its_confidence(hub, client, run, tmp_path):
    """Saving asks the Hub for nothing. Transformers 5.24 pushes what has changed since save_pretrained was called."""
    text = Confidence({"length_ratio": (0.5, 0.1)}, 7, NgramSet(b"1")).text()
    hub.create(MODEL)
    files = {name: (run / name).read_bytes() for name in ("config.json", "generation_config.json", WEIGHTS)}
    hub.commit(MODEL, files | {"confidence.json": text.encode()})
    client(client_save_and_push, folder=str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "confidence.json").read_text() == text
    first, second = (place for place, request in enumerate(hub.requests) if "whoami" in request)
    assert second == first + 1
    assert hub.files("ada/tuned")["confidence.json"] == text.encode()
    assert len(hub.titles("ada/tuned")) == 2
    assert WEIGHTS in hub.files("ada/tuned")
