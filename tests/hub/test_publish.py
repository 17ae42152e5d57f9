"""What a maintainer runs to publish the models whose scores are in docs/quality.md."""

import hashlib
import re
import runpy
import statistics
from pathlib import Path

import pytest
from loopback_client import MODEL, SHORT_RECIPE, call_command, without_check_and_waits

from modeling_scratch.data.corpus import write_corpus
from modeling_scratch.recipe import shipped_recipes

ROOT = Path(__file__).resolve().parents[2]  # not from conftest, which makes the client offline
SCRIPT = ROOT / "docs" / "jobs" / "publish.py"
EXPECTED = runpy.run_path(str(SCRIPT))["EXPECTED"]
OF_THE_CORPUS = EXPECTED["embedded"].references


def client_publish(folder: str, recipe: str, bleu: list[float], references: str, **options) -> list:
    """Publish with these expected scores of a recipe: [exit code, output]."""
    script = runpy.run_path(str(SCRIPT))
    script["EXPECTED"][recipe] = script["Expected"](tuple(bleu), references)
    without_check_and_waits()
    return call_command(script["main"], recipe, Path(folder), MODEL, **options)


@pytest.fixture
def recipe(tmp_path) -> Path:
    """A file with the recipe of `run`."""
    (tmp_path / "recipe.yaml").write_text(SHORT_RECIPE)
    return tmp_path / "recipe.yaml"


@pytest.mark.slow
def test_a_run_with_the_expected_scores_is_pushed_only_on_request(hub, client, run, recipe):
    given = {"folder": str(run), "recipe": str(recipe), "bleu": [0.0, 1.0], "references": OF_THE_CORPUS}
    code, output = client(client_publish, **given)
    assert code == 0, output
    assert re.search(r"BLEU 0\.\d\d on 500 sentences; expected: -1\.62 to 2\.62\n", output)
    assert "The card" in output
    assert hub.repositories == {}
    code, output = client(client_publish, **given, push=True)
    assert code == 0, output
    assert hub.files(MODEL)["model.safetensors"] == (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("bleu", "references", "content", "message"),
    [
        ([50.0, 51.0], OF_THE_CORPUS, SHORT_RECIPE, r"expected: 48\.38 to 52\.62"),  # 50.5 and 3 times the root of 1/2
        ([0.0, 1.0], "0" * 64, SHORT_RECIPE, "test set"),
        ([0.0, 1.0], OF_THE_CORPUS, SHORT_RECIPE.replace("20", "21"), r"optimization\.max_steps differ"),
    ],
)
def test_another_score_test_set_or_recipe_is_refused(bleu, references, content, message, hub, client, run, recipe):
    recipe.write_text(content)
    given = {"folder": str(run), "recipe": str(recipe), "bleu": bleu, "references": references}
    code, output = client(client_publish, **given, push=True)
    assert code == 2
    assert re.search(rf"^error: .*{message}", output, flags=re.MULTILINE)
    assert hub.repositories == {}


def test_a_folder_that_is_no_run_s_is_refused(hub, client, tmp_path):
    given = {"folder": str(tmp_path), "recipe": "embedded", "bleu": [0.0, 1.0], "references": OF_THE_CORPUS}
    code, output = client(client_publish, **given)
    assert code == 2
    assert "is not the folder of a run: it has no recipe.yaml" in output


def test_the_expected_scores_are_those_of_the_documentation_and_of_the_corpus(tmp_path):
    assert EXPECTED.keys() <= shipped_recipes().keys()
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("quality.md", "lab/quality.md")]
    assert f"mean of four seeds | 2.35 M | {statistics.mean(EXPECTED['multi30k-en-de'].bleu):.2f} |" in pages[0]
    assert [score for expected in EXPECTED.values() for score in expected.bleu if f"{score:.2f}" not in pages[1]] == []
    write_corpus(tmp_path)
    assert hashlib.sha256((tmp_path / "test.de").read_bytes().rstrip()).hexdigest() == OF_THE_CORPUS
