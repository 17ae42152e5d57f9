"""Several models on one command line: an ensemble, or an error if they do not fit together."""

import json
import re
import shutil
from functools import partial

import pytest
import torch
from conftest import few_sentences, padded, quick_run, run_evaluation
from translators import SENTENCES as MANY
from translators import by_hand, lines, run_translate, same_rows, two_vocabularies, widened

from modeling_scratch.commands.evaluate import split_arguments
from modeling_scratch.errors import UserError
from modeling_scratch.inference.ensemble import Ensemble
from modeling_scratch.loading import load_tokenizers, load_translator

SENTENCES = MANY[:5]


@pytest.fixture(scope="module")
def folder():
    return two_vocabularies()


@pytest.fixture
def run(folder, monkeypatch):
    return partial(run_translate, monkeypatch, folder)


@pytest.fixture
def other(folder, tmp_path):
    """A model with the same tokenizers and other weights."""
    other, generator = shutil.copytree(folder, tmp_path / "other"), torch.Generator().manual_seed(0)
    model = load_translator(str(folder))
    for weight in model.parameters():
        weight.data += 0.1 * weight.data.std() * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(other)
    return other


def test_models_translate_as_an_ensemble(run, folder, other):
    source, target = load_tokenizers(str(folder))
    ensemble = Ensemble([load_translator(str(each)) for each in (folder, other)])
    ids = [source(sentence).input_ids for sentence in SENTENCES]
    rows, mask = padded(list(map(torch.tensor, ids)), max(map(len, ids)))
    expected = target.batch_decode(ensemble.generate(rows, attention_mask=mask), skip_special_tokens=True)
    assert run(lines(*SENTENCES, ""), others=[str(other)]) == (0, lines(*expected, ""), "")
    assert run(lines(*SENTENCES), others=[str(other)], batch_size=1) == (0, lines(*expected), "")
    assert expected not in (by_hand(folder, SENTENCES), by_hand(other, SENTENCES))


@pytest.mark.parametrize("options", [{}, {"num_beams": 1, "scores": True}, {"n_best": 3}], ids=str)
def test_a_model_with_itself_translates_as_alone(options, run, folder):
    code, alone, message = run(lines(*SENTENCES), **options)
    together = run(lines(*SENTENCES), others=[str(folder)], **options)
    assert (together[0], together[2]) == (code, message) == (0, message)
    same_rows(together[1], alone)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"model_type": "t5"}, "t5"),
        ("generation_config.json", {"eos_token_id": 3}, "eos_token_id"),
        ("generation_config.json", {"decoder_start_token_id": 2}, "decoder_start_token_id"),
        ("tokenizer_config.json", {"eos_token": "<unk>"}, "source tokenizer"),
        ("target_tokenizer/tokenizer.json", None, "target tokenizer"),
    ],
)
def test_models_that_differ_are_refused(file, values, message, run, folder, tmp_path):
    differs = tmp_path / "differs"
    shutil.copytree(folder, differs)
    if values is None:
        shutil.copy(differs / "tokenizer.json", differs / file)
    else:
        (differs / file).write_text(json.dumps(json.loads((differs / file).read_text()) | values))
    code, output, error = run(others=[str(folder), str(differs)])
    *warnings, error = error.splitlines()
    assert (code, output) == (2, b"")
    assert all(each.startswith("warning: ") for each in warnings)
    assert str(differs) in error
    assert message in error


def test_a_run_with_itself_has_the_scores_of_the_run(trained, tmp_path, capsys):
    few, same = few_sentences(), widened(trained, tmp_path / "run")
    run_evaluation(str(same), *few)
    alone = capsys.readouterr().out
    run_evaluation(str(same), str(same), *few)
    together = capsys.readouterr().out
    assert "BLEU" in alone
    alone = re.sub(r"  doubtful: .*\n", "", alone)  # an ensemble has no confidence
    assert together == alone.replace(f"{same},", f"{same} + {same},")


def test_runs_with_one_tokenizer_are_scored_together(trained, tmp_path, capsys):
    second = quick_run(tmp_path / "second", f"tokenizer.existing={trained}", "seed=2", "optimization.max_steps=2")
    capsys.readouterr()
    run_evaluation(str(trained), str(second), *few_sentences(), split="validation")
    assert re.match(rf"{trained} \+ {second}, \d+ sentences of validation\n  BLEU ", capsys.readouterr().out)


def test_models_and_overrides_are_distinguished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    arguments = ["here", "seed=3", "runs/lr=0.1", "data.test_files=a/b", "user/name"]
    assert split_arguments(arguments) == (["here", "runs/lr=0.1", "user/name"], ["seed=3", "data.test_files=a/b"])
    with pytest.raises(UserError, match=r"'seed'.*KEY=VALUE"):
        split_arguments(["seed"])
