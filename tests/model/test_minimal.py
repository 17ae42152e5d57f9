"""docs/learn/minimal.py computes what the model computes, and with modern.diff what the variant `modern` computes."""

import importlib.util
import shutil
import subprocess

import pytest
import torch
from conftest import ROOT, padded

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.recipe.reading import read_yaml

SIZES = {"vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
SOURCE, MASK = padded([torch.randint(4, 60, (length,)) for length in (9, 4, 6)], 9)
LABELS, _ = padded([torch.randint(4, 60, (length,)) for length in (5, 7, 2)], 7)


@pytest.fixture(params=["tiny", "modern"])
def both(request, tmp_path):
    """The short file's model and the real one, with the same random weights in float64."""
    shutil.copy(ROOT / "docs" / "learn" / "minimal.py", tmp_path)
    if request.param == "modern":
        patch = ROOT / "docs" / "learn" / "modern.diff"
        subprocess.run(["git", "apply", "-p0", patch], cwd=tmp_path, check=True, env={"GIT_CEILING_DIRECTORIES": "/"})
    spec = importlib.util.spec_from_file_location("minimal", tmp_path / "minimal.py")
    spec.loader.exec_module(minimal := importlib.util.module_from_spec(spec))
    fields = read_yaml(ROOT / "configuration" / "models" / f"{request.param}.yaml")
    model = ScratchForConditionalGeneration(ScratchConfig(**fields | SIZES)).eval()
    with torch.no_grad():
        for weight in model.parameters():  # biases are 0 and norms 1 in a new model
            weight += 0.2 * torch.randn_like(weight)
    model.save_pretrained(tmp_path / "model")
    return minimal.load(tmp_path / "model").double(), model.double()


@torch.no_grad()
def test_the_short_file_gives_the_same_logits_and_loss(both):
    short, model = both
    found = model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=LABELS.clamp_min(4)).logits
    torch.testing.assert_close(short(SOURCE, LABELS.clamp_min(4)), found, rtol=0, atol=1e-6)
    loss = model(input_ids=SOURCE, attention_mask=MASK, labels=LABELS.masked_fill(LABELS == 0, -100)).loss
    torch.testing.assert_close(short.loss(SOURCE, LABELS, smoothing=0.0), loss, rtol=0, atol=1e-6)


@torch.no_grad()
def test_its_greedy_search_follows_the_most_probable_tokens(both):
    short, model = both
    target = short.translate(SOURCE, longest=12)
    begun = torch.cat((torch.full_like(target[:, :1], short.start), target[:, :-1]), dim=1)
    logits = model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=begun).logits
    chosen = logits.gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(chosen[target != 0], logits.amax(dim=-1)[target != 0], rtol=0, atol=1e-6)
    for row in target.tolist():
        end = row.index(short.end) + 1 if short.end in row else len(row)
        assert not any(row[end:])


@torch.no_grad()
def test_a_sentence_has_the_same_logits_alone_and_beside_longer_ones(both):
    short, _ = both
    target = LABELS.clamp_min(4)
    together, alone = short(SOURCE, target)[1], short(SOURCE[1:2, :4], target[1:2])[0]
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
