"""A stranger loads a model with two vocabularies from the Hub and pushes it again."""

import json

import pytest
import torch
from conftest import ROOT, run_command
from loopback_hub import ADA, GRACE, LoopbackHub
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from translators import make_folder

from modeling_scratch import ScratchTranslationPipeline

SENTENCES = ["The cat sleeps.", "", "The dog can see the old cat."]

# Runs without this project: prints what the loaded model does, and pushes a copy.
STRANGER = """
import json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "modeling_scratch": raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from transformers.dynamic_module_utils import get_class_from_dynamic_module
name, sentences, copy = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
refused = None
try:
    translator = pipeline("translation", model=name, trust_remote_code=True)
except OSError as error:
    refused = str(error)
    translator = pipeline("translation", model=name, trust_remote_code=True)
trusted = {"trust_remote_code": True}
tokenizer = AutoTokenizer.from_pretrained(name, **trusted)
target = AutoTokenizer.from_pretrained(name, subfolder="target_tokenizer", **trusted)
model = AutoModelForSeq2SeqLM.from_pretrained(name, **trusted).eval()
for part in (translator, translator.model, model):
    assert type(part).__module__.startswith("transformers_modules."), type(part).__module__
inputs = tokenizer([each for each in sentences if each], padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs, decoder_input_ids=torch.arange(6).repeat(2, 1)).logits
by_class = get_class_from_dynamic_module("translation_pipeline.ScratchTranslationPipeline", name)
found = {
    "refused": refused,
    "input_ids": inputs.input_ids.tolist(),
    "logits": logits.tolist(),
    "by_hand": target.batch_decode(model.generate(**inputs), skip_special_tokens=True),
    "translations": translator(sentences),
    "best": translator(sentences, num_beams=3, num_return_sequences=2),
    "in memory": by_class(model=model, tokenizer=tokenizer)(sentences),
}
if copy:
    translator.push_to_hub(copy)
print(json.dumps(found))
"""


def stranger(hub, home, token, name: str, copy: str = "") -> dict:
    environment = hub.environment(token, home) | {"PYTHONPATH": "", "TQDM_DISABLE": "1"}
    process = run_command("-c", STRANGER, name, json.dumps(SENTENCES), copy, **environment)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_stranger_loads_from_the_hub_and_pushes_the_same_model(tmp_path):
    folder = make_folder(tmp_path / "two", target_size=330, updates=0)
    translator = pipeline("translation", model=str(folder), pipeline_class=ScratchTranslationPipeline)
    source, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert source.get_vocab() != translator.target_tokenizer.get_vocab()
    inputs = source(SENTENCES[::2], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=torch.arange(6).repeat(2, 1)).logits
    expected, best = translator(SENTENCES), translator(SENTENCES, num_beams=3, num_return_sequences=2)
    with LoopbackHub() as hub:
        environment = hub.environment(ADA, tmp_path / "ada")
        pushed = run_command(str(ROOT / "hub_upload.py"), str(folder), "ada/two", **environment)
        assert pushed.returncode == 0, pushed.stderr
        # If the target's tokenizer cannot be loaded, it is not replaced by the source's.
        hub.fail(403, path="target_tokenizer/tokenizer_config.json")
        found = stranger(hub, tmp_path / "grace", GRACE, "ada/two", "grace/copy")
        files, copied = hub.files("ada/two"), hub.files("grace/copy")
    assert "target_tokenizer" in found["refused"]
    assert found["input_ids"] == inputs.input_ids.tolist()
    torch.testing.assert_close(torch.tensor(found["logits"], dtype=logits.dtype), logits, atol=1e-6, rtol=0)
    assert found["translations"] == found["in memory"] == expected
    assert found["by_hand"] == [each["translation_text"] for each in expected[::2]]
    assert [[each["score"] for each in several] for several in found["best"]] == [
        pytest.approx([each["score"] for each in several]) for several in best
    ]
    # The copy is the same model.
    travels = {name for name in files if name.endswith((".py", ".safetensors", "tokenizer.json"))}
    assert {"translation_pipeline.py", "model.safetensors", "target_tokenizer/tokenizer.json"} < travels
    assert {name: copied[name] for name in travels} == {name: files[name] for name in travels}
    config, expected = (json.loads(each["config.json"]) for each in (copied, files))
    assert config == expected  # without references to the code in ada/two
