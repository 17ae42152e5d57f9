"""The final translations in a run's folder: a line each, of exactly the sentences that were scored."""

from pathlib import Path

import pytest
import sacrebleu
import yaml
from conftest import few_sentences, quick_run, read_metrics

from modeling_scratch.errors import UserError
from modeling_scratch.hub.allowed_files import chosen_files
from modeling_scratch.training.folder import RunFolder, read_translations, write_translations


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run scored on validation, for an average, on test, and on a further set."""
    further = {"further": few_sentences()[1].partition("=")[2]}
    options = [f"data.test_sets={yaml.safe_dump(further, default_flow_style=True).strip()}"]
    options += ["checkpoints.average_last=2", "evaluation.validation_beams=2"]
    return quick_run(tmp_path_factory.mktemp("runs") / "run", *options)


@pytest.mark.parametrize("name", ["validation", "test", "further"])
def test_the_recorded_score_is_that_of_the_written_lines(run, name):
    split = "test" if name == "test" else "validation"
    prefix = next(each for each in few_sentences() if each.startswith(f"data.{split}_files")).partition("=")[2]
    references = Path(f"{prefix}.de").read_text(encoding="utf-8").splitlines()
    lines = (run / "translations" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    final = [record for record in read_metrics(run) if record.get("final")]
    (record,) = [record for record in final if (record.get("name") or record["split"]) == name]
    assert sacrebleu.corpus_chrf(lines, [references]).score == record["chrf"]


def test_translations_stay_when_the_model_goes_to_the_hub(run):
    assert not any("translations" in name for name in chosen_files(run))


def test_a_run_that_is_replaced_takes_its_translations_along(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "recipe.yaml").write_text("output_dir: run\noptimization: {max_steps: 1}\n")
    write_translations(tmp_path, "test", ["eins"])
    folder.create()
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


@pytest.mark.parametrize("texts", [[], [""], ["", "", "a"], ["a\nb", "c\r\nd\n", "e\u2028f\x85g"], ["größer", " x "]])
def test_each_translation_is_read_as_one(texts, tmp_path):
    write_translations(tmp_path, "test", ["of an earlier scoring"] * 9)
    write_translations(tmp_path, "test", texts)
    found = read_translations(tmp_path, "test")
    assert [text.split() for text in found] == [text.split() for text in texts]


@pytest.mark.parametrize(("content", "message"), [(None, "test.txt: no such file"), (b"\xff\n", "not valid UTF-8")])
def test_unreadable_translations_are_named(content, message, tmp_path):
    (tmp_path / "translations").mkdir()
    if content is not None:
        (tmp_path / "translations" / "test.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_translations(tmp_path, "test")
