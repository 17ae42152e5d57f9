"""A model that was pushed to the Hub works for a stranger as it does in its author's folder."""

import sys

import pytest
from compatibility import compare, make_models, probe
from conftest import ROOT, run_command
from loopback_hub import ADA, GRACE, LoopbackHub


@pytest.mark.slow
def test_a_pushed_model_with_two_vocabularies_works_from_the_hub(tmp_path):
    """In a process without this project: logits, searches, n-best lists and the pipeline."""
    folder = make_models(tmp_path)["modern"]
    (expected,) = probe(sys.executable, [str(folder)], tmp_path, HF_HUB_OFFLINE="1")
    with LoopbackHub() as hub:
        environment = hub.environment(ADA, tmp_path / "ada")
        pushed = run_command(str(ROOT / "hub_upload.py"), str(folder), "ada/two", **environment)
        assert pushed.returncode == 0, pushed.stderr
        (found,) = probe(sys.executable, ["ada/two"], tmp_path, **hub.environment(GRACE, tmp_path / "grace"))
        assert not {"error"} & (found.keys() | expected.keys()), (found, expected)
        assert all(compare(found, expected))
        # If the target's tokenizer cannot be loaded, it is not replaced by the source's.
        hub.fail(403, path="target_tokenizer/tokenizer_config.json", times=None)
        (refused,) = probe(sys.executable, ["ada/two"], tmp_path, **hub.environment(GRACE, tmp_path / "other"))
    assert "target_tokenizer" in refused["error"]
