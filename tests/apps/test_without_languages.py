"""A model of pairs that are not translations: nothing that people see of it speaks of translation."""

import json
import re
import shutil

import pytest
from conftest import ROOT, SMALL_RUN, run_training
from pages import needs_runtime, node
from services import get, post, running
from translators import make_folder, run_translate

from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.apps.web.export import export_page
from modeling_scratch.apps.web.site import read_described
from modeling_scratch.apps.web.transformersjs import export_transformersjs
from modeling_scratch.hub.card import build_card
from modeling_scratch.run.records import RunRecords

RECIPE = ["data.name=dates", "data.task=dates in ISO 8601", "tokenizer.kind=characters", "optimization.max_steps=4"]
RECIPE += ["evaluation.metric=cer", "evaluation.metrics=[exact_match]", "evaluation.every=2", "checkpoints.every=2"]
SIDES = {"source": "source", "target": "target"}
TEXTS = ["AUG. 13, 1929. Who? June 12th, 1918", "***"]


def speaks_of_translation(text: str) -> list[str]:
    """Each mention of translation, apart from names: the command's, keys, and LibreTranslate's."""
    named = r"isTranslator|modeling_scratch translate|scratch translate|translate_every|LibreTranslate|translatedText"
    return re.findall(r".*translat.*", re.sub(named, "", text), re.IGNORECASE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("runs") / "dates"
    run_training(*SMALL_RUN, *RECIPE, f"output_dir={folder}", config=str(ROOT / "configuration/recipes/embedded.yaml"))
    return folder


@pytest.fixture(scope="module")
def url(trained):
    with running(Service(Directions([load_direction(str(trained), load_torch_engine)]), Limits())) as url:
        yield url


def test_the_log_of_its_training(tmp_path, capsys):
    run_training(*SMALL_RUN, *RECIPE, f"output_dir={tmp_path / 'run'}")
    output = "".join(capsys.readouterr())
    assert "scoring the final weights on the 500 pairs of the test split" in output
    assert not speaks_of_translation(output)


def test_its_card(trained):
    card = str(build_card(trained, "user/dates", RunRecords(trained)))
    assert "dates in ISO 8601" in card
    assert not speaks_of_translation(card)


@needs_runtime
@pytest.mark.slow
def test_its_page(trained, tmp_path):
    export_page([str(trained)], tmp_path / "page")
    (described,) = read_described(tmp_path / "page")["directions"]
    shown = {key: described[key] for key in ("title", "languages", "sides", "examples", "facts")}
    assert shown["title"] == "Dates in ISO 8601"
    assert (shown["languages"], shown["sides"]) == ([], ["Input", "Output"])
    assert not speaks_of_translation(json.dumps(shown))


@pytest.mark.slow
def test_its_folder_for_transformersjs(trained, tmp_path):
    """Whose graphs are checked with random ids, which in a vocabulary as small as this include the end token."""
    export_transformersjs(str(trained), tmp_path / "folder")
    card = (tmp_path / "folder" / "README.md").read_text()
    assert 'await pipeline("text2text-generation"' in card
    assert not speaks_of_translation(card)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_texts_of_its_page():
    folder = ROOT / "modeling_scratch/apps/web/page"
    script = f"""
        import {{ STRINGS, speaker }} from {json.dumps((folder / "strings.js").as_uri())};
        const say = speaker("en", false);
        console.log(JSON.stringify(Object.keys(STRINGS.en).flatMap((name) => [1, 2].map((n) => say(name, {{ n }})))));
    """
    texts = node("--input-type=module", "-e", script)
    assert "Output" in texts
    assert not speaks_of_translation("\n".join([*texts, (folder / "index.html").read_text()]))


def test_its_service(url):
    found = {name: get(f"{url}/{name}") for name in ("", "model.json", "languages", "metrics")}
    assert json.loads(found["languages"])[0] == {"code": "source", "name": "source", "targets": ["target"]}
    errors = [post(f"{url}/translate", {"q": "x", "source": "en", "target": "de"})[1]["error"]]
    errors.append(post(f"{url}/translate", {"q": "1" * 1100} | SIDES)[1]["error"])
    found["metrics"] = re.sub(r'path="[^"]*"', "", found["metrics"])
    assert not speaks_of_translation("\n".join([*found.values(), *errors]))


def test_a_service_gives_its_lines_to_the_model_whole(trained, url, monkeypatch):
    """Even one with sentences, or without a letter; as the command line does."""
    code, output, _ = run_translate(monkeypatch, str(trained), "".join(f"{text}\n" for text in TEXTS).encode())
    assert code == 0
    expected = output.decode().splitlines()
    whole = "{0}\n\n  {1} \r\n"
    assert post(f"{url}/translate", {"q": whole.format(*TEXTS)} | SIDES)[1]["translatedText"] == whole.format(*expected)
    parts = post(f"{url}/page/sentences", {"text": whole.format(*TEXTS)} | SIDES)[1]["parts"]
    assert [text for text, is_sentence in parts if is_sentence] == TEXTS
    answer = post(f"{url}/page/translate", {"sentences": TEXTS, "numBeams": 2} | SIDES)[1]
    assert [beam[0]["text"] for beam in answer["translations"]] == expected


def test_there_is_no_language_to_detect(url):
    assert post(f"{url}/detect", {"q": "June 12th, 1918"})[1] == [{"confidence": 0.0, "language": "source"}]
    answer = post(f"{url}/translate", {"q": "June 12th, 1918", "source": "auto", "target": "target"})[1]
    assert answer["detectedLanguage"] == {"confidence": 0.0, "language": "source"}


def test_a_service_may_name_the_sides_beside_a_translator(trained, tmp_path):
    models = [f"words:iso={trained}", f"en:de={make_folder(tmp_path / 'model', updates=1)}"]
    directions = Directions(load_direction(name, load_torch_engine) for name in models)
    assert directions.names == {"words": "words", "iso": "iso", "en": "English", "de": "German"}
    assert directions.languages == ["en", "de"]
    with pytest.raises(ValueError, match=r"two models go from source to target; .* words:phones=FOLDER"):
        Directions(load_direction(str(trained), load_torch_engine) for _ in range(2))
    with pytest.raises(ValueError, match=r"words:iso=.*it is a translator"):
        load_direction(f"words:iso={tmp_path / 'model'}", load_torch_engine)
