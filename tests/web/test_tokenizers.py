"""The tokenizers of an export: what JavaScript reads in their config is what Python's do."""

import json

import pytest
from translators import make_folder

from modeling_scratch.loading import load_tokenizers
from modeling_scratch.web.tokenizers import write_tokenizers


@pytest.mark.parametrize("setting", [None, True, False])
def test_spaces_before_punctuation_stay_if_python_keeps_them(setting, tmp_path):
    """JavaScript removes them unless the config says no; this kind of tokenizer keeps them in any case."""
    make_folder(tmp_path / "model", updates=1)
    path = tmp_path / "model" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("clean_up_tokenization_spaces", None)
    path.write_text(json.dumps(config | ({} if setting is None else {"clean_up_tokenization_spaces": setting})))
    tokenizer = load_tokenizers(str(tmp_path / "model"))[0]
    assert tokenizer.decode(tokenizer("a ! b 's", add_special_tokens=False).input_ids).strip() == "a ! b 's"
    (tmp_path / "out").mkdir()
    write_tokenizers(str(tmp_path / "model"), tmp_path / "out", "a page")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["clean_up_tokenization_spaces"] is False
