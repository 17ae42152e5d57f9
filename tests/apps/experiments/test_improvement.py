"""`scratch improve`: the pairs that it makes, against translating by hand; interrupted anywhere it makes the same."""

import json
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState, GradientState, PartialState
from conftest import Killed, few_sentences, kill_at_update, quick_run, read_metrics
from forked import run_group, start
from safetensors.torch import load_file
from train_on_processes import improve_one, lock_folder, no_picture, translate_in_shards
from translators import load
from typer.testing import CliRunner

from modeling_scratch import files
from modeling_scratch.__main__ import app
from modeling_scratch.apps.experiments import improve as corpus_translation
from modeling_scratch.apps.experiments import improve as improvement
from modeling_scratch.apps.experiments.improve import ImprovementOptions, ImprovementPlan, ShardedTranslation
from modeling_scratch.commands import improve
from modeling_scratch.errors import UserError
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.training import curves
from modeling_scratch.training.finish import is_finished

SHORT = ["optimization.max_steps=6", "optimization.warmup_steps=2", "evaluation.every=6", "checkpoints.every=3"]
SHORT += ["optimization.schedule=linear", "optimization.learning_rate=1e-2", "evaluation.max_new_tokens=6"]


@pytest.fixture(scope="module", autouse=True)
def float64():
    """
    Models of this precision, since translations in float32 depend on how many are in a batch: those of a run that was
    interrupted would be others, and so would all that is trained on them.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> list[str]:
    """Overrides that name 50 pairs for training, with a test split, and none for validation."""
    folder = tmp_path_factory.mktemp("pairs")
    given = {each.partition("=")[0]: Path(each.partition("=")[2]) for each in few_sentences()}
    for split in ("train", "test"):
        for language in ("en", "de"):
            text = given[f"data.{split}_files"].with_suffix(f".{language}").read_text()
            lines = text.splitlines(keepends=True)[: 50 if split == "train" else 10]
            (folder / f"{split}.{language}").write_text("".join(lines))
    files = [f"data.{split}_files={folder / split}" for split in ("train", "test")]
    return [*files, "data.validation_files=null", "data.validation_size=10"]


@pytest.fixture(scope="module")
def run(pairs, tmp_path_factory) -> Path:
    return quick_run(tmp_path_factory.mktemp("runs") / "run", *pairs, *SHORT)


def improved(run: Path, output: Path, *overrides: str, **options) -> Path:
    """As the command does it, in this process; without pictures, and with a hasty estimate of the time."""
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()
    with patch.object(curves, "plot_curves", no_picture), patch.object(improvement, "_SAMPLE", 2):
        improve.main(run, list(overrides), **{"output": output, "seeds": 2, "length": 1.5, **options})
    return output


@pytest.fixture(scope="module")
def undisturbed(run, tmp_path_factory) -> Path:
    return improved(run, tmp_path_factory.mktemp("improved") / "better", "checkpoints.keep_last=1")


def read_pairs(path: Path) -> list[tuple[str, str]]:
    return [(row["en"], row["de"]) for row in map(json.loads, path.read_text().splitlines())]


def by_hand(folder: Path, sentences: list[str]) -> list[str]:
    """Translations; none of sentences of more than 64 tokens, which these runs leave out of training."""
    pipeline = load(folder)
    lengths = [len(ids) for ids in pipeline.tokenizer(list(sentences)).input_ids]
    found = [each["translation_text"] for each in pipeline(list(sentences))]
    return [text if length <= 64 else "" for text, length in zip(found, lengths, strict=True)]


def test_the_pairs_are_the_translations_of_all_models_each_once(run, undisturbed):
    work = undisturbed.with_name("better-work")
    own = read_pairs(work / "data" / "train.jsonl")
    english, german = zip(*own, strict=True)
    assert len(own) == 40
    made = []
    for number, forward in ((1, run), (2, work / "forward-2")):
        made += zip(by_hand(work / f"backward-{number}", list(german)), german, strict=True)
        made += zip(english, by_hand(forward, list(english)), strict=True)
    expected = [pair for pair in dict.fromkeys(made) if pair not in set(own) and all(pair)]
    assert len(expected) > 40
    assert read_pairs(work / "data" / "synthetic.jsonl") == expected
    assert not (work / "forward-1").exists()


def test_the_recipes_of_the_models(run, undisturbed):
    work, first = undisturbed.with_name("better-work"), load_recipe(run / "recipe.yaml")
    backward, forward, final = (
        load_recipe(folder / "recipe.yaml") for folder in (work / "backward-2", work / "forward-2", undisturbed)
    )
    assert (backward.data.source_language, backward.data.target_language) == ("de", "en")
    assert (forward.data.source_language, forward.data.target_language) == ("en", "de")
    assert (first.seed, backward.seed, forward.seed, final.seed) == (0, 1, 1, 0)
    assert backward.optimization == forward.optimization == first.optimization
    assert backward.model.overrides == first.model.overrides
    assert first.model.overrides["dropout"] == 0.1
    assert final.model.overrides == first.model.overrides | {"dropout": 0.067}  # two thirds
    assert (final.optimization.max_steps, final.checkpoints.keep_last) == (9, 1)
    assert final.data.model_copy(update={"mix": []}) == first.data
    assert (undisturbed / "tokenizer.json").read_text() == (run / "tokenizer.json").read_text()
    (record,) = read_metrics(undisturbed, "run")
    assert record["train_pairs"] == 40 + len(read_pairs(work / "data" / "synthetic.jsonl"))
    (before,), (after,) = (read_metrics(folder, "test") for folder in (run, undisturbed))
    assert before["sentences"] == after["sentences"]
    # Nobody learns from what the run holds out.
    held_out = set(read_pairs(work / "data" / "validation.jsonl"))
    assert len(held_out) == 10
    assert not held_out & set(read_pairs(work / "data" / "train.jsonl"))


def test_a_run_with_trackers_and_alignments_is_improved(pairs, tmp_path):
    """Only the improved model has them: the others' pairs have no gold links."""
    pytest.importorskip("tensorboard")
    options = ["trackers=[tensorboard]", "checkpoints.keep_last=1"]
    run = quick_run(tmp_path / "run", *pairs, *SHORT, *options)
    better = improved(run, tmp_path / "better", seeds=1, length=0.5)
    assert [path.parent.parent.name for path in tmp_path.rglob("events.*")].count("tracking") == len(
        list((run / "tracking").rglob("events.*")) + list((better / "tracking").rglob("events.*"))
    )
    assert not list(better.with_name("better-work").rglob("events.*"))
    recipe = load_recipe(run / "recipe.yaml")
    recipe.evaluation.alignments = True
    plan = ImprovementPlan(ImprovementOptions(run, tmp_path / "other"))
    plan.recipe = recipe
    assert not plan.recipe_of("backward", 1).evaluation.alignments


def test_two_commands_at_once(run, undisturbed, tmp_path, monkeypatch):
    plan = ImprovementPlan(ImprovementOptions(run, undisturbed, length=1.5, overrides=("checkpoints.keep_last=1",)))
    plan.begin(improvement._pairs(plan))
    child = start(tmp_path / "output", lock_folder, str(undisturbed.with_name("better-work")), str(tmp_path / "locked"))
    assert child.end() == 2
    assert "is in use by another run" in child.said


def test_an_interrupted_improvement_resumes(run, undisturbed, tmp_path, monkeypatch, capsys):
    """Killed in a model's training, while a shard is written, between two of its stages and at the very end."""
    again = tmp_path / "better, perhaps"
    monkeypatch.setattr(corpus_translation, "SHARD", 15)
    with monkeypatch.context() as patch:
        kill_at_update(patch, 5)
        with pytest.raises(Killed):
            improved(run, again, "checkpoints.keep_last=1")
    with pytest.raises(SystemExit) as stopped:
        improved(run, again, "checkpoints.keep_last=1", max_minutes=0)
    assert stopped.value.code == 75
    assert "backward-1; the same command continues" in capsys.readouterr().err
    write, written = files.write_lines, []

    def write_or_die(path, texts):
        written.append(path)
        if len(written) == 3:
            raise Killed
        write(path, texts)

    with monkeypatch.context() as patch:
        patch.setattr(corpus_translation, "write_lines", write_or_die)
        with pytest.raises(Killed):
            improved(run, again, "checkpoints.keep_last=1")
    assert [path.name for path in written] == ["000000.txt", "000001.txt", "000002.txt"]
    with monkeypatch.context() as patch:
        kill_at_update(patch, 6 + 6 + 5)
        with pytest.raises(Killed):
            improved(run, again, "checkpoints.keep_last=1")
    improved(run, again, "checkpoints.keep_last=1")
    first, other = (load_file(folder / "model.safetensors") for folder in (undisturbed, again))
    assert all(torch.equal(tensor, other[name]) for name, tensor in first.items())
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    improved(run, again, "checkpoints.keep_last=1")
    assert f"{again} is finished\n  scratch compare {run} '{again}'\n" in capsys.readouterr().out
    changed = {path for path in before if path.stat().st_mtime_ns != before[path]}
    assert not changed
    shutil.rmtree(again.with_name("better, perhaps-work"))
    improved(run, again, "checkpoints.keep_last=1")
    assert f"{again} is finished" in capsys.readouterr().out
    assert not again.with_name("better, perhaps-work").exists()


def test_text_in_one_language(run, tmp_path):
    too_long = "The dog " * 40  # which training would drop
    (tmp_path / "more.en").write_text(f"The cat sleeps.\n\nThe dog sleeps.\n{too_long}\n")
    (tmp_path / "more.de").write_text("Der Hund schläft.\nDie Katze schläft.\n")
    texts = {"source_text": [tmp_path / "more.en"], "target_text": [tmp_path / "more.de"]}
    better = improved(run, tmp_path / "better", seeds=1, length=0.2, **texts)
    work = better.with_name("better-work")
    german = ["Der Hund schläft.", "Die Katze schläft."]
    assert read_pairs(work / "data" / "back-translated.jsonl") == [
        *zip(by_hand(work / "backward-1", german), german, strict=True)
    ]
    english = ["The cat sleeps.", "The dog sleeps."]
    expected = {pair for pair in zip(english, by_hand(run, english), strict=True) if pair[1]}
    assert expected <= set(read_pairs(work / "data" / "synthetic.jsonl"))
    lines = (work / "translations" / "forward-1" / "000000.txt").read_text().splitlines()[-4:]
    assert [bool(line) for line in lines] == [True, False, True, False]
    assert load_recipe(better / "recipe.yaml").data.mix[1].tag == "<bt>"


def test_a_dry_run_lists_the_stages_and_writes_nothing(run, undisturbed, tmp_path, capsys):
    improved(run, tmp_path / "new", dry_run=True)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].endswith(f"if training takes as long as the run's took on {read_metrics(run)[0]['device_name']}")
    lines = [line.rsplit("  ", 1)[0].strip() for line in shown]
    translate = "translate 40 sentences by"
    assert lines == [
        "train backward-1",
        f"{translate} backward-1",
        f"{translate} forward-1",
        "train backward-2",
        f"{translate} backward-2",
        "train forward-2",
        f"{translate} forward-2",
        f"train {tmp_path / 'new'}",
        "all that is left",
    ]
    assert not list(tmp_path.iterdir())
    improved(run, undisturbed, "checkpoints.keep_last=1", dry_run=True)
    assert capsys.readouterr().out.splitlines()[0] == f"train {undisturbed}  done"


def error_line(*arguments) -> str:
    """The error line of the command."""
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()
    result = CliRunner().invoke(app, ["improve", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


def test_what_was_begun_with_something_else(run, pairs, undisturbed, tmp_path):
    """Nothing made from other pairs, another run or other options is taken for what is asked for now."""
    differs = error_line(run, "--output", undisturbed, "--length", 3)
    assert "holds a run of another recipe (it differs in optimization.max_steps)" in differs
    finished = ["--output", undisturbed, "--length", 1.5, "--seeds", 3, "checkpoints.keep_last=1"]
    assert "was begun with other seeds;" in error_line(run, *finished)
    own = tmp_path / "run"
    shutil.copytree(run, own)
    shutil.copytree(undisturbed.with_name("better-work"), tmp_path / "run-improved-work")
    begun = ["--length", 1.5, "checkpoints.keep_last=1"]
    assert "was begun with other seeds;" in error_line(own, "--seeds", 3, *begun)
    assert "was begun with other length;" in error_line(own, "checkpoints.keep_last=1")
    quick_run(own, *pairs, *SHORT, "data.validation_size=12", overwrite=True)
    assert "was begun with other pairs, weights of the run;" in error_line(own, *begun)
    assert not (tmp_path / "run-improved").exists()


def test_smaller_batches_after_a_lack_of_memory(run, undisturbed, tmp_path):
    """As its message advises: what is done stays, and all models have them."""
    keys = ("checkpoints.keep_last=1", "evaluation.batch_size=3", "data.num_workers=1")
    keys += ("optimization.gradient_accumulation_steps=2",)
    plan = ImprovementPlan(ImprovementOptions(run, undisturbed, length=1.5, overrides=keys))
    plan.check_begun(improvement._pairs(plan))
    assert is_finished(plan.final)
    assert is_finished(plan.recipe_of("backward", 1))
    for recipe in (plan.final, plan.recipe_of("backward", 1), plan.recipe_of("forward", 2)):
        assert (recipe.evaluation.batch_size, recipe.optimization.gradient_accumulation_steps) == (3, 2)

    def no_memory(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with patch.object(improvement.ShardedTranslation, "complete", no_memory), pytest.raises(SystemExit) as ended:
        improved(run, tmp_path / "better", seeds=1)
    assert ended.value.code == 2


def test_an_improved_model_is_pushed(run, undisturbed):
    keys = ["checkpoints.keep_last=1", "hub.repository=ada/better"]
    with patch("modeling_scratch.hub.push.push_run") as push, patch("modeling_scratch.hub.push.check_destination"):
        push.return_value.describe.return_value = "pushed"
        with patch.object(improvement, "is_finished", lambda recipe: True):
            improved(run, undisturbed, *keys)
    assert push.call_args.args[0].hub.repository == "ada/better"


@pytest.mark.parametrize("override", ["seed=1", "data.validation_size=5", "output_dir=x", "tokenizer.vocab_size=500"])
def test_what_the_pairs_depend_on_stays(override, run):
    assert f"{override}: the improved model has the run's own {override.partition('=')[0]}" in error_line(run, override)


def test_what_cannot_be_improved(run, tmp_path):
    assert "not a run's folder" in error_line(tmp_path)
    assert "must be another folder" in error_line(run, "--output", run)
    assert "none: no such file" in error_line(run, "--target-text", tmp_path / "none")
    assert "unknown recipe key 'optimisation'; did you mean" in error_line(run, "optimisation.max_steps=3", "--dry-run")
    misspelt = error_line(run, "model.overrides.droput=0.2", "--dry-run")
    assert "unknown recipe key 'droput'; did you mean 'dropout'?" in misspelt
    assert "model.config: this recipe sets the sizes" in error_line(run, "model.config=base", "--dry-run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    assert "there is something else" in error_line(run, "--output", tmp_path / "other")
    other = tmp_path / "run"
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("checkpoints"))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["model"] = {"start_from": "another"}
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert "it was fine-tuned from another" in error_line(other)
    lines = [json.dumps(each) + "\n" for each in read_metrics(run) if "final" not in each]
    (other / "metrics.jsonl").write_text("".join(lines))
    assert "this run is not finished" in error_line(other)


def test_processes_translate_each_sentence_once(run, tmp_path):
    sentences = [f"The dog sees {number} cats." for number in range(70)]
    run_group(tmp_path, 2, translate_in_shards, str(run), str(tmp_path / "shards"), sentences, 20)
    expected = by_hand(run, sentences)
    translation = ShardedTranslation(tmp_path / "shards", sentences, "x")
    found = [path.read_text().splitlines() for path in sorted((tmp_path / "shards").glob("*.txt"))]
    assert [line for shard in found for line in shard] == expected
    assert [len(shard) for shard in found] == [20, 20, 20, 10]
    calls = (tmp_path / "shards.calls").read_text().split()
    assert sorted(calls) == ["10", "20", "20", "20"]
    assert translation.count == 1  # here with 1,000 sentences a shard


@pytest.mark.slow
def test_on_two_processes(run, tmp_path):
    """All stages; a process that has no part left waits for the other."""
    run_group(tmp_path, 2, improve_one, str(run), str(tmp_path / "better"), {"seeds": 1, "length": 0.5})
    work = tmp_path / "better-work"
    (record,) = read_metrics(tmp_path / "better", "run")
    assert (record["processes"], record["train_pairs"]) == (2, 40 + len(read_pairs(work / "data" / "synthetic.jsonl")))
    assert len(read_metrics(tmp_path / "better", "test")) == 1
    german = [target for _, target in read_pairs(work / "data" / "train.jsonl")]
    found = (work / "translations" / "backward-1" / "000000.txt").read_text().splitlines()
    assert found == by_hand(work / "backward-1", german)


def test_a_shard_with_other_lines_is_named(tmp_path):
    (tmp_path / "000000.txt").write_text("Eins.\nZwei.\n")
    with pytest.raises(UserError, match=r"000000.txt: 2 lines; delete it"):
        ShardedTranslation(tmp_path, ["One."], "x").read()
