"""Exported tokenizers work the same in JavaScript as in Python."""

import json

import pytest
from pages import needs_runtime, node
from texts import INVISIBLE, TEXTS
from translators import make_folder

from modeling_scratch.apps.web import runtime
from modeling_scratch.apps.web.tokenizers import write_tokenizers
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.loading import load_tokenizers
from modeling_scratch.model.text import with_features


def in_javascript(tokenizer, texts, folder) -> list[tuple[list[int], str]]:
    """The ids of each text, and what they decode to, without the page's own code, as other projects use it."""
    tokenizer.save_pretrained(folder)
    script = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ Tokenizer }} from {json.dumps((runtime.cache_folder() / runtime.MODULES[1]).as_uri())};
        const [content, config] = ["", "_config"].map((end) => JSON.parse(readFileSync(`tokenizer${{end}}.json`)));
        const tokenizer = new Tokenizer(content, config);
        const both = (ids) => [ids, tokenizer.decode(ids, {{ skip_special_tokens: true }})];
        console.log(JSON.stringify({json.dumps(texts)}.map((text) => both(tokenizer.encode(text).ids))));
    """
    return node("--input-type=module", "-e", script, cwd=folder)


@needs_runtime
def test_a_tokenizer_ignores_invisible_characters_in_javascript(tmp_path):
    tokenizer, texts = train_tokenizer(iter([TEXTS]), 400), [f"The{mark} cat\u200c{mark}." for mark in INVISIBLE]
    found = in_javascript(tokenizer, texts, tmp_path)
    assert [ids for ids, _ in found] == [tokenizer("The cat\u200c.").input_ids] * len(texts)


@needs_runtime
@pytest.mark.parametrize(
    ("kind", "pattern", "texts"),
    [
        ("characters", None, ["a cat 😀", "l'été", "xyz"]),
        ("decomposed", None, ["a cat 😀", "l'été", "각시", "xyz"]),
        ("words", None, ["p l ʷ a", "ɔ̃ q"]),
        ("pattern", r"\[[^\]]+]|Br?|Cl?|[A-Za-z=()]", ["CC(=O)[C@@H]Br", "Cl#N"]),
        ("characters", None, [with_features("a cat", "V;first person"), with_features("xyz a", "N;V;é")]),
        ("words", None, [with_features("p l", "V;first person"), with_features("p a", "N;V")]),
        ("pattern", "CC|[A-Z]", [with_features("CCO", "CC;B A"), with_features("Occ", "C;CC")]),
        ("bpe", None, [with_features("a cat", "V;first person"), with_features("xyz a", "N;V")]),
    ],
)
def test_symbols_are_the_same_in_javascript(kind, pattern, texts, tmp_path):
    """Unknown ones too, and features."""
    tokenizer = train_tokenizer(iter([texts[:-1]]), 300, kind, pattern)
    ids = [tokenizer(text).input_ids for text in texts]
    expected = [[row, tokenizer.decode(row, skip_special_tokens=True)] for row in ids]
    assert in_javascript(tokenizer, texts, tmp_path) == expected


@pytest.mark.parametrize("setting", [None, True, False])
def test_spaces_before_punctuation_stay_if_they_do_in_python(setting, tmp_path):
    """JavaScript removes them by default; in Python, our tokenizers keep them with any setting."""
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
