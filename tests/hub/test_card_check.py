"""The check of a model card names everything that its metadata lack, and why they cannot be read."""

import re

import pytest

from modeling_scratch.hub.card import check_card

CARD = """---
language:
- en
- de
license: apache-2.0
library_name: transformers
pipeline_tag: translation
tags:
- translation
metrics:
- sacrebleu
model-index:
- name: tiny
  results:
  - task: {type: translation}
    dataset: {type: embedded, name: the embedded corpus}
    metrics:
    - type: sacrebleu
      value: 31.25
---

# tiny
"""
WRONG = {
    "no metadata": (r"^---\n.*?\n---\n", "", "language is missing.*license is missing.*model-index is missing"),
    "no license": ("license: apache-2.0", "license: ''", "license is missing"),
    "model-index": ("    dataset:", "    data:", "huggingface_hub cannot read it.*KeyError"),
    "key": ("license:", "1: x\nlicense:", "huggingface_hub cannot read it"),
    "token": ("# tiny", "# tiny\n\nhf_" + "a1B2" * 8, "looks like a token"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(case):
    pattern, replacement, message = case
    text, count = re.subn(pattern, replacement, CARD, count=1, flags=re.DOTALL)
    assert count
    with pytest.raises(ValueError, match=message) as error:
        check_card(text)
    assert "hf_a1B2" not in str(error.value)


def test_all_that_is_wrong_is_named_at_once():
    text = CARD.replace("license: apache-2.0\n", "").replace("    dataset:", "    data:")
    with pytest.raises(ValueError, match=r"license is missing; .*huggingface_hub cannot read it"):
        check_card(text)


@pytest.mark.parametrize("text", [CARD, CARD.replace("\n", "\r\n"), CARD + "hf_transfer is a package.\n"])
def test_what_is_right_passes(text):
    check_card(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("license: apache-2.0", "license: [mit", r"the card, line 6: the metadata is not valid YAML"),
        ("license: apache-2.0", "license: a: b", r"the card, line 5: .*not valid YAML: mapping values"),
        ("license: apache-2.0", "day: 2026-13-45", r"the card, line 2 and after: .*month must be in 1\.\.12"),
        ("---\n\n# tiny", "\n# tiny", r"the card: the metadata that begins with --- has no line --- at its end"),
        (CARD[4 : CARD.index("---", 4)], "- en\n", r"the card, line 2: .*not a list"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_broken_metadata_is_named_with_its_line(old, new, message, newline):
    assert old in CARD
    with pytest.raises(ValueError, match=message):
        check_card(CARD.replace(old, new, 1).replace("\n", newline))
