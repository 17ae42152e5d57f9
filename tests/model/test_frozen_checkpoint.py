"""
Checkpoints saved by version 0.1.0 load with the same ids and logits in every later version.

Never regenerate `tests/model/frozen_checkpoint/`: a change that requires it breaks every checkpoint in use.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForTextEncoding, AutoTokenizer

FROZEN = Path(__file__).parent / "frozen_checkpoint"
SENTENCES = ["The cat sleeps.", "Übermorgen: 3 naïve cats – 🐈!"]  # noqa: RUF001


def observe(folder: Path) -> dict:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).double().eval()
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    target = torch.arange(4, 12).repeat(2, 1)
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=target).logits
    return {
        "input_ids": inputs["input_ids"].tolist(),
        "tokens": tokenizer.convert_ids_to_tokens(inputs["input_ids"][1]),
        "decoded": tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True),
        "generated": model.generate(**inputs, max_new_tokens=8).tolist(),
        "beam": model.generate(**inputs, max_new_tokens=8, num_beams=3, length_penalty=0.6).tolist(),
        "logits": logits[:, -1, :40].tolist(),
        "logit_sum": logits.abs().sum().item(),
    }


@pytest.mark.parametrize("name", ["shared", "modern", "two-vocabularies"])
def test_a_checkpoint_of_version_0_1_0_gives_the_same_outputs(name):
    folder = FROZEN / name
    expected = json.loads((folder / "observed.json").read_text())
    observed = observe(folder)
    for key in ("logits", "logit_sum"):
        torch.testing.assert_close(
            torch.tensor(observed.pop(key)), torch.tensor(expected.pop(key)), rtol=1e-6, atol=1e-6
        )
    assert observed == expected
    assert observed["decoded"] == SENTENCES


@pytest.mark.parametrize("name", ["shared", "modern", "two-vocabularies"])
def test_both_heads_find_all_their_weights(name):
    for auto_class in (AutoModelForSeq2SeqLM, AutoModelForTextEncoding):
        _, report = auto_class.from_pretrained(FROZEN / name, output_loading_info=True)
        assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
