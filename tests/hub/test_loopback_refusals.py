"""What the loopback Hub refuses, and what the real huggingface_hub client makes of it: tokens, parents, model cards."""

import json
import warnings

from huggingface_hub import HfApi, ModelCard, hf_hub_download
from loopback_card import validate
from loopback_client import (
    CARD,
    GRACE,
    MODEL,
    READER,
    additions,
    outcome,
)

# -- tokens and private repositories -----------------------------------------------------------------------------------


def client_permissions(caches: str) -> dict:
    def api(token):
        return HfApi(token=token)

    def push(token, repo, **options):
        operations = additions({"a.txt": "a", "a.bin": "a"})
        return api(token).create_commit(repo, operations, commit_message="A", **options).oid

    results = {}
    for who, token in {"anonymous": False, "wrong": "hf_nobody_0123456789", "grace": GRACE, "reader": READER}.items():
        results[who] = {
            "whoami": outcome(api(token).whoami),
            "private info": outcome(lambda token=token: api(token).model_info("ada/private").id),
            "unknown info": outcome(lambda token=token: api(token).model_info("ada/none").id),
            "public info": outcome(lambda token=token: api(token).model_info("ada/public").id),
            "private file": outcome(hf_hub_download, "ada/private", "a.txt", token=token, cache_dir=f"{caches}/{who}"),
            "public file": outcome(hf_hub_download, "ada/public", "a.txt", token=token, cache_dir=f"{caches}/{who}"),
            "create": outcome(lambda token=token: api(token).create_repo("ada/new").repo_id),
            "exist_ok": outcome(lambda token=token: api(token).create_repo("ada/public", exist_ok=True).repo_id),
            "push": outcome(push, token, "ada/public"),
            "pull request": outcome(push, token, "ada/public", create_pr=True),
            "push unknown": outcome(push, token, "ada/none"),
            "tag": outcome(api(token).create_tag, "ada/public", tag="v1"),
        }
    results["fine"] = {
        "named": outcome(push, "hf_fine_0123456789", "ada/public"),
        "other": outcome(push, "hf_fine_0123456789", "ada/private"),
        "role": HfApi(token="hf_fine_0123456789").whoami()["auth"]["accessToken"]["role"],
    }
    results["team"] = outcome(lambda: HfApi(token="hf_team_0123456789").create_repo("team/new").repo_id)
    return results


def test_tokens_and_private_repositories(hub, client, tmp_path):
    for name, private in (("ada/private", True), ("ada/public", False)):
        hub.create(name, private=private)
        hub.commit(name, {"a.txt": b"0"})
    hub.add_token("hf_fine_0123456789", "ada", role="fineGrained", writes=["ada/public"])
    hub.add_token("hf_team_0123456789", "ada", organizations=["team"])
    found = client(client_permissions, token=None, caches=str(tmp_path))

    def errors(who):
        return {key: (value.get("error"), value.get("status")) for key, value in found[who].items()}

    ok, unknown = (None, None), ("RepositoryNotFoundError", 401)
    assert errors("anonymous") == {
        "whoami": ("ValueError", None),
        "private info": unknown,
        "unknown info": unknown,
        "public info": ok,
        "private file": unknown,
        "public file": ok,
        "create": ("HfHubHTTPError", 401),
        "exist_ok": ok,  # the client falls back to asking whether it exists
        "push": ("HfHubHTTPError", 401),
        "pull request": ("HfHubHTTPError", 401),
        "push unknown": unknown,
        "tag": ("HfHubHTTPError", 401),
    }
    assert set(errors("wrong").values()) == {("HfHubHTTPError", 401)}
    assert "Invalid user token" in found["wrong"]["whoami"]["message"]
    assert "Invalid credentials in Authorization header" in found["wrong"]["push"]["message"]
    unknown, forbidden = ("RepositoryNotFoundError", 404), ("HfHubHTTPError", 403)
    assert errors("grace") == {
        "whoami": ok,
        "private info": unknown,
        "unknown info": unknown,
        "public info": ok,
        "private file": unknown,
        "public file": ok,
        "create": forbidden,
        "exist_ok": ok,
        "push": forbidden,
        "pull request": ok,
        "push unknown": unknown,
        "tag": forbidden,
    }
    assert "pass `create_pr=1`" in found["grace"]["push"]["message"]
    assert 'under the namespace "ada"' in found["grace"]["create"]["message"]
    assert errors("reader") == errors("grace") | {
        "private info": ok,
        "private file": ok,
        "pull request": forbidden,
    }
    assert found["fine"]["role"] == "fineGrained"
    assert "value" in found["fine"]["named"]
    assert found["fine"]["other"]["status"] == 403
    assert found["team"] == {"value": "team/new"}


# -- commits that the Hub refuses --------------------------------------------------------------------------------------


def client_conflicts(head: str) -> dict:
    api = HfApi()

    def push(text, **options):
        return api.create_commit(MODEL, additions({"a.txt": text}), commit_message=text, **options).oid

    first = push("one", parent_commit=head)
    return {
        "first": first,
        "stale": outcome(push, "two", parent_commit=head),
        "short": outcome(push, "three", parent_commit=first[:8]),
        "overtaken": outcome(push, "four", revision="main"),
        "unknown branch": outcome(push, "five", revision="nothing"),
        "onto a tag": outcome(push, "six", revision="v1"),
        "from an old commit": outcome(push, "seven", parent_commit=head, create_pr=True),
        "the same as stale": outcome(push, "four", parent_commit=head),
    }


def test_a_commit_on_another_parent_is_refused(hub, client):
    hub.create(MODEL)
    head = hub.commits(MODEL)[0]["id"]
    hub.repository(MODEL).set_reference("refs/tags/v1", head)
    found = client(client_conflicts, head=head)
    assert (found["stale"]["error"], found["stale"]["status"]) == ("HfHubHTTPError", 412)
    assert "A commit has happened since. Please refresh and try again." in found["stale"]["message"]
    assert [commit["title"] for commit in hub.commits(MODEL)] == ["four", "three", "one", "initial commit"]
    assert found["unknown branch"]["error"] == found["onto a tag"]["error"] == "RevisionNotFoundError"
    assert hub.commits(MODEL, "refs/pr/1")[1]["id"] == head
    # A commit without changes never asks the Hub about its parent.
    assert found["the same as stale"] == found["overtaken"]


def test_somebody_can_commit_between_two_requests_of_a_client(hub, client):
    hub.create(MODEL)
    head = hub.commits(MODEL)[0]["id"]
    hub.fail(lambda: hub.commit(MODEL, {"a.txt": b"theirs"}, title="Theirs"), method="POST", path="/commit/")
    found = client(client_push_once, parent=head)
    assert (found["error"], found["status"]) == ("HfHubHTTPError", 412)
    assert hub.files(MODEL)["a.txt"] == b"theirs"
    assert [commit["title"] for commit in hub.commits(MODEL)] == ["Theirs", "initial commit"]


def client_push_once(parent: str | None = None) -> dict:
    operations = additions({"a.txt": "mine", "a.bin": "mine"})
    return outcome(lambda: HfApi().create_commit(MODEL, operations, commit_message="A", parent_commit=parent).oid)


# -- model cards -------------------------------------------------------------------------------------------------------


def client_cards(cards: dict[str, str]) -> dict:
    results = {}
    for name, text in cards.items():
        card = outcome(lambda text=text: str(ModelCard(text).push_to_hub(MODEL)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            commit = outcome(HfApi().create_commit, MODEL, additions({"README.md": text}), commit_message="Card")
        results[name] = {"card": card, "commit": commit, "warnings": [str(warning.message) for warning in caught]}
    return results


CARDS = {
    "valid": CARD,
    "without metadata": "# A model\n",
    "odd task": CARD.replace("pipeline_tag: translation", "pipeline_tag: translating"),
    "no yaml": CARD.replace("license: apache-2.0", "license: [apache-2.0"),
    "a list": "---\n- en\n---\n# A model\n",
    "license": CARD.replace("apache-2.0", "apache2"),
    "language": CARD.replace("- en", "- English"),
    "boolean language": CARD.replace("- en", "- no"),
    "tags": CARD.replace("[scratch]", "[1]"),
    "twice": CARD.replace("metrics: [bleu]", "metrics: [bleu]\nmetrics: [chrf]"),
    "base model": CARD.replace("tags:", "base_model: /tmp/run/model\ntags:"),
    "no task": CARD.replace("task: {type: translation}", "source: {name: x}"),
    "no data set name": CARD.replace(", name: Multi30k", ""),
    "no value": CARD.replace(", value: 31.5", ""),
    "index": CARD.partition("model-index:")[0] + "model-index: {name: x}\n---\n# Model\n",
}


def test_model_cards_are_validated(hub, client):
    hub.create(MODEL)
    found = client(client_cards, cards=CARDS)
    valid = {"valid", "without metadata", "odd task"}
    assert {name for name in CARDS if "value" in found[name]["commit"]} == valid
    # The client's card class mends a key given twice; what its own reading refuses never reaches the server.
    assert {name for name in CARDS if "value" in found[name]["card"]} == valid | {"twice"}
    expected = {
        "no yaml": "YAML parsing error",
        "a list": "must be of type object",
        "license": '"license" must be one of [apache-2.0, mit',
        "language": '"language[0]" must only contain lowercase characters',
        "boolean language": '"language[0]" must be a string',
        "tags": '"tags[0]" must be a string',
        "twice": "duplicated mapping key: metrics",
        "base model": "base_model",
        "no task": '"model-index[0].results[0].task" is required',
        "no data set name": '"model-index[0].results[0].dataset.name" is required',
        "no value": '"model-index[0].results[0].metrics[0].value" is required',
        "index": '"model-index" must be an array',
    }
    for name, message in expected.items():
        refused = found[name]["commit"]
        assert refused["error"] == "ValueError", name
        assert refused["message"].startswith("Invalid metadata in README.md.\n- "), name
        assert message in refused["message"], name
    for name in ("license", "language"):
        refused = found[name]["card"]
        assert refused["error"] == "ValueError"
        assert expected[name] in json.loads(refused["message"])["errors"][0]["message"]
    assert "empty or missing yaml metadata in repo card" in found["without metadata"]["warnings"][0]
    assert '"translating" is not in the official list' in found["odd task"]["warnings"][0]
    assert found["valid"]["warnings"] == []
    for commit in hub.commits(MODEL)[:-1]:
        assert validate(hub.files(MODEL, commit["id"])["README.md"].decode())["errors"] == []


def test_an_invalid_card_is_refused_by_the_commit_too(hub, client):
    hub.create(MODEL)
    hub.fail(200, times=None, path="validate-yaml")
    refused = client(client_cards, cards={"license": CARDS["license"]})["license"]["commit"]
    assert (refused["error"], refused["status"]) == ("BadRequestError", 400)
    assert len(hub.commits(MODEL)) == 1
