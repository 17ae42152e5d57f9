"""CTranslate2 runs without PyTorch and Transformers, and reads and writes text as with them."""

import json
import random
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from services import post
from texts import GOES_TO_A_TRANSLATOR, TEXTS
from translators import CORPUS, calibrate, make_folder
from waiting import LONGEST
from without_pytorch import without_pytorch

from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers, load_translator, save_tokenizers

ctranslate2_engine = pytest.importorskip("modeling_scratch.inference.ctranslate2_engine")
SENTENCES = [pair["en"] for pair in CORPUS][:50]
SERVE = [sys.executable, "-m", "modeling_scratch", "serve", "--engine", "ctranslate2"]
ODD = [*TEXTS, "a\u00adb \u200bc", "\u2002em\u3000space", "x " * 100, "{0} %s"]


@pytest.fixture(scope="module", params=[None, 330], ids=["one vocabulary", "two vocabularies"])
def folder(request, tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("models") / "model", target_size=request.param)
    save_tokenizers(*load_tokenizers(str(folder)), folder, languages=("en", "de"))
    return calibrate(folder)


@pytest.fixture(scope="module")
def converted(folder):
    from modeling_scratch.apps.convert.ctranslate2 import write_ctranslate2

    write_ctranslate2(str(folder), folder.with_name("converted"))
    return folder.with_name("converted")


@pytest.fixture(scope="module", params=[True, False], ids=["tokenizers", "Transformers"])
def engine(request, converted):
    """With each kind of tokenizers."""
    copy = shutil.copytree(converted, converted.with_name(f"plain-{request.param}"))
    origin = json.loads((copy / "origin.json").read_text())
    assert origin["hasPlainTokenizers"]
    (copy / "origin.json").write_text(json.dumps(origin | {"hasPlainTokenizers": request.param}))
    return ctranslate2_engine.CTranslate2Engine(str(copy))


def test_texts_get_the_tokens_that_they_get_from_transformers(engine, folder):
    translator = Translator(load_translator(str(folder)), *load_tokenizers(str(folder)))
    for features in (None, [" V;PST;3 ; ", *[""] * (len(SENTENCES + ODD) - 1)]):
        expected = translator.tokenize(SENTENCES + ODD, features=features)
        assert engine.tokenize(SENTENCES + ODD, features=features) == expected


def test_what_is_not_translated(engine):
    """The batcher and `Translator.translate` return what has no tokens as it is."""
    tokens = engine.tokenize(list(GOES_TO_A_TRANSLATOR))
    assert [bool(row) for row in tokens] == list(GOES_TO_A_TRANSLATOR.values())


def test_tokens_are_decoded_as_by_transformers(engine, folder):
    _, target = load_tokenizers(str(folder))
    generator = random.Random(0)
    for _ in range(50):
        ids = [generator.randrange(len(target)) for _ in range(20)]
        tokens = target.convert_ids_to_tokens(ids)
        assert [engine.target.token_to_id(token) for token in tokens] == ids
        assert engine.target.decode(ids, skip_special_tokens=True) == target.decode(ids, skip_special_tokens=True)


def test_a_mistyped_folder_is_an_error_at_once_without_pytorch(tmp_path):
    (tmp_path / "runs" / "near").mkdir(parents=True)
    environment = without_pytorch(tmp_path) | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}  # no server
    for name in ("runs/ner", "./runs/ner"):
        command = [*SERVE, name, "--port", "0"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "no such folder (did you mean runs/near?)" in done.stderr


def test_the_service_answers_where_pytorch_and_transformers_cannot_be_imported(converted, tmp_path):
    command = [*SERVE, str(converted), "--port", "0"]
    service = subprocess.Popen(command, env=without_pytorch(tmp_path), stderr=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://[\d.:]+", service.stderr.readline())[0]
        status, answer = post(f"{url}/translate", {"q": SENTENCES[0], "source": "en", "target": "de"})
    finally:
        service.terminate()
        service.communicate(timeout=LONGEST)
    assert (status, set(answer)) == (200, {"translatedText", "confidence"} | ({"doubt"} & set(answer)))


@pytest.mark.slow
def test_a_model_is_converted_once(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    first = ctranslate2_engine.CTranslate2Engine(str(folder))
    monkeypatch.setattr(ctranslate2_engine.subprocess, "run", None)  # is not called again
    again = ctranslate2_engine.CTranslate2Engine(str(folder))
    tokens = first.tokenize(SENTENCES)
    assert first.translate_batch(SENTENCES, tokens) == again.translate_batch(SENTENCES, tokens)
