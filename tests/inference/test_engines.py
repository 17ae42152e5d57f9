"""CTranslate2 translates for `scratch translate` where it does what PyTorch does, without PyTorch."""

import importlib.util
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import conftest
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from conftest import forget_accelerator, quick_run, run_evaluation
from translators import LEARNT, SENTENCES, lines, make_folder, one_vocabulary, run_translate, same_rows, with_kept_words
from without_pytorch import without_pytorch

from modeling_scratch.commands import train
from modeling_scratch.errors import UserError
from modeling_scratch.inference import engine
from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers, load_translator
from modeling_scratch.model import ScratchForConditionalGeneration
from modeling_scratch.model.confidence import NgramSet, ngrams_of
from modeling_scratch.model.kept_words import RESERVED
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.training.scoring import score_model

ctranslate2_engine = pytest.importorskip("modeling_scratch.inference.ctranslate2_engine")
TEXT = lines(*SENTENCES, "", "...")


@pytest.fixture(scope="module")
def learnt() -> bytes:
    """Lines that the model translates well, so that no other hypothesis is near."""
    found = Translator.load([str(with_kept_words())]).translate([pair["en"] for pair in LEARNT])
    known = [pair["en"] for pair, (best,) in zip(LEARNT, found, strict=True) if best.text == pair["de"]]
    assert len(known) > 40
    return lines(*known, "", "...", " ".join(known[:3]), f"{known[4]} %s %d")


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    from modeling_scratch.apps.convert.ctranslate2 import write_ctranslate2

    folder = tmp_path_factory.mktemp("models") / "converted"
    write_ctranslate2(str(with_kept_words()), folder)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scores": True, "confidence": True},
        {"num_beams": 1, "max_new_tokens": 5},
        {"length_penalty": 0.2, "num_beams": 4},
        {"format": "text", "confidence": True},
        {"sentences": "split", "batch_size": 3},
    ],
    ids=str,
)
def test_both_engines_write_the_same(options, learnt, converted, monkeypatch):
    code, expected, told = run_translate(monkeypatch, with_kept_words(), learnt, quiet=True, **options)
    assert code == 0
    for chosen in ("auto", "ctranslate2"):
        given = {"engine": chosen, "quiet": True, **options}
        code, found, warnings = run_translate(monkeypatch, converted, learnt, **given)
        assert (code, warnings) == (0, told)
        same_rows(found, expected)


def test_the_command_imports_neither_pytorch_nor_transformers(converted, tmp_path):
    command = [sys.executable, "-m", "modeling_scratch", "translate", str(converted), "--format", "html"]
    page = "<p>The <b>cat</b> sleeps.</p>"
    done = subprocess.run(command, input=page, env=without_pytorch(tmp_path), capture_output=True, text=True)
    assert "imported" in done.stderr  # tags need alignments, so PyTorch would place them
    done = subprocess.run(
        [*command, "--engine", "ctranslate2"], input=page, env=without_pytorch(tmp_path), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.count("<b>")) == (0, 1), done.stderr
    done = subprocess.run(command[:-2], input=TEXT, env=without_pytorch(tmp_path), capture_output=True)
    assert (done.returncode, done.stdout.count(b"\n")) == (0, TEXT.count(b"\n")), done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"names": ["a", "b"]}, "an ensemble"),
        ({"revision": "main"}, "newest revision"),
        ({"dtype": "bfloat16"}, "not in bfloat16"),
        ({"max_new_tokens": 2000}, "more than 1000 tokens"),
    ],
    ids=str,
)
def test_what_only_pytorch_does(options, why):
    names = options.pop("names", ["a"])
    assert engine.ctranslate2_engine(names, "auto", **options) is None
    assert engine.ctranslate2_engine(names, "torch", **options) is None
    with pytest.raises(UserError, match=f"--engine ctranslate2: CTranslate2 .*{why}"):
        engine.ctranslate2_engine(names, "ctranslate2", **options)
    if "dtype" not in options:
        with pytest.raises(UserError, match=f"--dtype int8: CTranslate2 .*{why}"):
            engine.ctranslate2_engine(names, "auto", dtype="int8", **options)


def test_int8_is_what_ctranslate2_computes_when_told_to(converted, monkeypatch):
    settings = json.loads((converted / "generation.json").read_text())
    source, target = load_tokenizers(str(with_kept_words()))
    texts = [pair["en"] for pair in LEARNT]
    tokens = [source.convert_ids_to_tokens(row) for row in source(texts).input_ids]
    scores = {}
    for dtype in ("float32", "int8"):
        translator = ctranslate2_engine.ctranslate2.Translator(str(converted), compute_type=dtype)
        results = translator.translate_batch(tokens, return_scores=True, **settings)
        given = {"engine": "auto", "dtype": dtype, "scores": True, "quiet": True}
        code, found, _ = run_translate(monkeypatch, converted, lines(*texts), **given)
        assert code == 0
        scores[dtype] = []
        for row, result in zip(found.decode().splitlines(), results, strict=True):
            score, text = row.split("\t")
            ids = target.convert_tokens_to_ids(result.hypotheses[0])
            length = len(ids) + 1  # the end token, too
            if is_whole := length <= settings["max_decoding_length"] and not set(target.decode(ids)) & set(RESERVED):
                assert text == target.decode(ids)
                assert float(score) == pytest.approx(result.scores[0] * length, abs=1e-3)
            scores[dtype].append(float(score) if is_whole else 0)
        assert scores[dtype].count(0) < len(texts) / 4
    assert scores["int8"] != pytest.approx(scores["float32"], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"engine": "torch"}, "--dtype int8: only CTranslate2 computes in 8 bits; leave out --engine torch"),
        ({"workers": 2}, "--workers 2: only with PyTorch"),
        ({"alignments": True}, "--alignments: CTranslate2 provides none; leave out --dtype int8"),
    ],
    ids=str,
)
def test_int8_is_not_for_pytorch(options, why, converted, monkeypatch):
    given = {"engine": "auto", "dtype": "int8", **options}
    code, output, told = run_translate(monkeypatch, converted, TEXT, **given)
    assert (code, output) == (2, b"")
    assert why in told


def test_without_ctranslate2_or_with_a_gpu_pytorch_translates(converted, monkeypatch):
    assert engine.ctranslate2_engine([str(converted)], "auto") is not None
    assert engine.ctranslate2_engine([str(converted)], "auto", aligns=True) is None
    assert engine.ctranslate2_engine([str(converted)], "auto", n_best=2) is None
    with monkeypatch.context() as patch:
        patch.setattr(ctranslate2_engine.ctranslate2, "get_cuda_device_count", lambda: 1)
        assert engine.ctranslate2_engine([str(converted)], "auto") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert engine.ctranslate2_engine([str(converted)], "auto") is None


def convert_here(monkeypatch, cache: Path) -> list[int]:
    """Have models converted by this process, and kept in this folder. Returns a list that each conversion extends."""
    from modeling_scratch.apps.convert.ctranslate2 import write_ctranslate2

    calls: list[int] = []

    def run(command, **options):
        calls.append(1)
        told: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: told.append(f"warning: {record.getMessage()}\n")
        logging.getLogger("modeling_scratch").addHandler(handler)
        try:
            write_ctranslate2(command[-2], Path(command[-1]))
        except UserError as error:
            shutil.rmtree(command[-1], ignore_errors=True)
            return subprocess.CompletedProcess(command, 2, stderr=f"a warning\nerror: {error}\n")
        finally:
            logging.getLogger("modeling_scratch").removeHandler(handler)
        return subprocess.CompletedProcess(command, 0, stderr="".join(told))

    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(ctranslate2_engine.subprocess, "run", run)
    return calls


def test_a_model_that_it_cannot_express_is_tried_once_and_translated_by_pytorch(tmp_path, monkeypatch, caplog):
    folder = make_folder(tmp_path / "model", updates=1, position_embedding_type="alibi")
    calls = convert_here(monkeypatch, tmp_path / "cache")
    expected = run_translate(monkeypatch, folder, TEXT)
    for _ in range(2):
        code, output, told = run_translate(monkeypatch, folder, TEXT, engine="auto")
        assert (code, output) == expected[:2]
        assert "PyTorch translates, not CTranslate2: CTranslate2 cannot express this model: position_embedding" in told
    with pytest.raises(UserError, match="position_embedding_type is 'alibi'"):
        engine.ctranslate2_engine([str(folder)], "ctranslate2")
    assert len(calls) == 1


def test_settings_that_mean_something_else_there_are_left_to_pytorch(tmp_path, monkeypatch, caplog):
    folder = shutil.copytree(one_vocabulary(), tmp_path / "model")
    model = load_translator(str(folder))
    model.generation_config.update(do_sample=True, num_beams=1)
    model.save_pretrained(folder)
    convert_here(monkeypatch, tmp_path / "cache")
    with caplog.at_level(logging.INFO, "modeling_scratch"):
        assert engine.ctranslate2_engine([str(folder)], "auto") is None
    assert "PyTorch translates" in caplog.text
    assert "do_sample" in caplog.text
    caplog.clear()
    assert engine.ctranslate2_engine([str(folder)], "ctranslate2") is not None
    assert "do_sample" in caplog.text


def test_a_trained_model_is_converted_before_its_first_use(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr(conftest, "run_training", lambda *overrides: (forget_accelerator(), train.main(list(overrides))))
        folder = quick_run(tmp_path / "run")
    monkeypatch.setattr(ctranslate2_engine.subprocess, "run", None)  # is not called
    (found,) = engine.ctranslate2_engine([str(folder)], "ctranslate2").translate(SENTENCES[:1])
    assert found[0].length > 0


def test_converting_after_training_logs_nothing_and_leaves_the_folder_as_it_is(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = shutil.copytree(with_kept_words(), tmp_path / "model")
    (folder / "training_args.bin").touch()  # which loading warns of
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with caplog.at_level(logging.INFO, "modeling_scratch"):
        train.keep_converted(str(folder))
    assert (caplog.text, {path: path.stat().st_mtime_ns for path in folder.rglob("*")}) == ("", before)
    monkeypatch.setattr(ctranslate2_engine.subprocess, "run", None)  # is not called
    assert engine.ctranslate2_engine([str(folder)], "ctranslate2") is not None
    assert "was calibrated before the model was trained" in caplog.text


def test_a_conversion_that_fails_does_not_fail_the_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").touch()  # no folder
    with caplog.at_level(logging.INFO, "modeling_scratch"):
        train.keep_converted(str(one_vocabulary()))
    assert len(caplog.records) == 1
    assert "was not converted for CTranslate2" in caplog.text


def test_what_loading_warns_of_is_told_each_time(tmp_path, monkeypatch, caplog):
    folder = shutil.copytree(with_kept_words(), tmp_path / "model")
    (folder / "training_args.bin").touch()
    calls = convert_here(monkeypatch, tmp_path / "cache")
    for number in range(2):
        caplog.clear()
        assert engine.ctranslate2_engine([str(folder)], "auto") is not None
        assert caplog.text.count("was calibrated before the model was trained") == 2 - number  # and in the conversion
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["cache", "model"])
def test_where_a_conversion_cannot_be_kept_or_read_pytorch_translates(damage, converted, tmp_path, monkeypatch):
    if damage == "cache":
        (tmp_path / "cache").touch()  # no folder
        folder = with_kept_words()
        convert_here(monkeypatch, tmp_path / "cache")
    else:
        folder = shutil.copytree(converted, tmp_path / "converted")
        (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:1000])
    assert engine.ctranslate2_engine([str(folder)], "auto") is None
    with pytest.raises((OSError, RuntimeError)):
        engine.ctranslate2_engine([str(folder)], "ctranslate2")


def test_outputs_end_where_learned_positions_end(tmp_path, monkeypatch):
    folder = shutil.copytree(one_vocabulary(), tmp_path / "model")
    trained = load_translator(str(folder))
    trained.config.position_embedding_type = "learned"  # 60 of them
    torch.manual_seed(0)
    model = ScratchForConditionalGeneration(trained.config)
    model.generation_config = trained.generation_config
    model.save_pretrained(folder)
    convert_here(monkeypatch, tmp_path / "cache")
    engines = Translator.load([str(folder)]), engine.ctranslate2_engine([str(folder)], "auto")
    for each in engines:
        found = each.translate(SENTENCES, max_new_tokens=500)
        assert max(best.length for (best,) in found) == 60
        with pytest.raises(ValueError, match="the model takes 60"):
            each.translate(["cat " * 100])


@pytest.mark.parametrize(
    ("stops", "keys", "is_used"),
    [
        (True, [], True),
        (False, ["evaluation.num_beams=1"], True),
        (False, [], False),  # its beam search ends elsewhere
        (True, ["evaluation.also=[top_3]", "evaluation.num_beams=3"], False),  # further hypotheses
    ],
    ids=str,
)
def test_scores_are_those_of_pytorch(stops, keys, is_used, trained, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(with_kept_words(), tmp_path / "model")
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"early_stopping": stops}))
    for side in ("en", "de"):
        (tmp_path / f"test.{side}").write_bytes(lines(*(pair[side] for pair in LEARNT)))
    convert_here(monkeypatch, tmp_path / "cache")
    translate_batch, used = ctranslate2_engine.CTranslate2Engine.translate_batch, []

    def noted(*given, **settings):
        used.append(settings)
        return translate_batch(*given, **settings)

    monkeypatch.setattr(ctranslate2_engine.CTranslate2Engine, "translate_batch", noted)
    found = []
    for chosen in ("torch", "auto"):
        assert not used
        given = [str(folder), f"data.test_files={tmp_path / 'test'}", *keys]
        run_evaluation(*given, config=str(trained / "recipe.yaml"), engine=chosen)
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert "doubtful" in found[0]
    assert bool(used) == is_used


def test_several_processes_score_with_pytorch(trained, monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    with pytest.raises(UserError, match="--engine ctranslate2: it translates on the cores of one process"):
        score_model(load_recipe(trained / "recipe.yaml"), [str(trained)], [], Accelerator(cpu=True), "ctranslate2")
    assert score_model(load_recipe(trained / "recipe.yaml"), [str(trained)], [], Accelerator(cpu=True), "auto") == {}


def test_ctranslate2_has_no_alignments_to_write(converted, monkeypatch):
    code, output, told = run_translate(monkeypatch, converted, TEXT, engine="ctranslate2", alignments=True)
    assert (code, output) == (2, b"")
    assert "--alignments: CTranslate2 provides none" in told


def test_what_cannot_be_loaded_is_the_same_error(tmp_path, monkeypatch):
    for name in ("nowhere", str(tmp_path)):
        found = {run_translate(monkeypatch, name, TEXT, engine=chosen)[2] for chosen in ("torch", "auto")}
        assert len({message.splitlines()[-1] for message in found}) == 1


def test_engines_know_the_same_of_a_model(converted):
    translator = Translator.load([str(with_kept_words())])
    found = ctranslate2_engine.CTranslate2Engine(str(converted))
    for name in ("limit", "longest_source", "unknown", "num_beams", "rules", "confidence"):
        one, other = getattr(translator, name), getattr(found, name)
        assert one == other or name == "confidence"
    assert found.confidence.text() == translator.confidence.text()


def test_pytorch_keeps_its_threads(converted, three_threads):
    """CTranslate2 4.8 sets OpenMP's number of threads, which PyTorch uses, when a translator is made."""
    from modeling_scratch.inference.ctranslate2_engine import CTranslate2Engine

    engine = CTranslate2Engine(str(converted))
    assert torch.get_num_threads() == three_threads
    engine.translate(["The dog sleeps."])
    assert torch.get_num_threads() == three_threads


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [5, 50, 40_000])
def test_ngrams_that_are_looked_up_at_once_are_those_of_the_set(size):
    """A set contains what it does when it is asked one by one."""
    random = np.random.default_rng(size)
    known = NgramSet(random.bytes(size))
    rows = [random.integers(2**31, size=count).tolist() for count in (0, 1, 2, 5, 400)] + [[], [2**31 - 1]]
    found = ctranslate2_engine._LookedUp(known, rows)
    ngrams = [ngram for row in rows for ngram in ngrams_of(row)]
    assert [ngram in found for ngram in ngrams] == [ngram in known for ngram in ngrams]
    assert len({ngram in known for ngram in ngrams}) == 2
    assert found.bits == known.bits
