"""
Checkpoints saved by version 0.1.0 load with the same ids and logits in every later version.

Never regenerate `tests/model/frozen_checkpoint/`: a change that requires it breaks every checkpoint in use. They were
made by `python tests/model/test_frozen_checkpoint.py FOLDER`.
"""

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForTextEncoding, AutoTokenizer

FROZEN = Path(__file__).parent / "frozen_checkpoint"
SENTENCES = ["The cat sleeps.", "Übermorgen: 3 naïve cats – 🐈!"]  # noqa: RUF001
VARIANTS = {
    "shared": {},
    "modern": {
        "position_embedding_type": "rotary",
        "norm_type": "rms_norm",
        "gated_ffn": True,
        "activation_function": "silu",
        "attention_bias": False,
        "ffn_bias": False,
    },
    "two-vocabularies": {
        "decoder_vocab_size": 280,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "lm_head_bias": True,
        "norm_position": "post",
        "position_embedding_type": "learned",
        "max_position_embeddings": 128,
    },
}


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


@pytest.mark.parametrize("name", VARIANTS)
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


@pytest.mark.parametrize("name", VARIANTS)
def test_both_heads_find_all_their_weights(name):
    for auto_class in (AutoModelForSeq2SeqLM, AutoModelForTextEncoding):
        _, report = auto_class.from_pretrained(FROZEN / name, output_loading_info=True)
        assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report


if __name__ == "__main__":
    from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
    from modeling_scratch.data.tokenizer import train_tokenizer

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "vocab_size": 280}
    for variant, fields in VARIANTS.items():
        folder = Path(sys.argv[1]) / variant
        torch.manual_seed(0)
        model = ScratchForConditionalGeneration(ScratchConfig(**(sizes | fields), init_std=0.4))
        model.save_pretrained(folder)
        train_tokenizer(iter([SENTENCES * 3]), 280).save_pretrained(folder)
        for code in folder.glob("*.py"):
            code.unlink()  # the checkpoint fixes the names and meanings in the files, not this version's code
        (folder / "observed.json").write_text(json.dumps(observe(folder)))
