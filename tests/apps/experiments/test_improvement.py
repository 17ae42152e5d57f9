"""`scratch improve`: its pairs against translations by the pipeline, its recipes, and resuming after interruptions."""

import json
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState, GradientState, PartialState
from conftest import Killed, equal_weights, few_sentences, kill_at_update, quick_run, read_metrics
from forked import run_group
from train_on_processes import improve_one, no_picture, translate_in_shards
from translators import load
from typer.testing import CliRunner

from modeling_scratch import files
from modeling_scratch.apps.experiments import improve as improvement
from modeling_scratch.apps.experiments import work_folder
from modeling_scratch.apps.experiments.improve import ImprovementOptions, ImprovementPlan
from modeling_scratch.apps.experiments.work_folder import ShardedTranslation
from modeling_scratch.commands import app, improve
from modeling_scratch.errors import UserError
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.run import curves
from modeling_scratch.training.finish import is_finished

SHORT = ["optimization.max_steps=6", "optimization.warmup_steps=2", "evaluation.every=6", "checkpoints.every=3"]
SHORT += ["optimization.schedule=linear", "optimization.learning_rate=1e-2", "evaluation.max_new_tokens=6"]
KEEP_ONE = "checkpoints.keep_last=1"  # an override that only the improved model has


@pytest.fixture(scope="module", autouse=True)
def float64():
    """In float32, translations would depend on the batch, and an interrupted improvement would make other pairs."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> list[str]:
    """Overrides with 50 pairs for training, of which 10 are held out for validation, and 10 for testing."""
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
    """Run the command in this process, without pictures and with a quick estimate of the time."""
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()
    with patch.object(curves, "plot_curves", no_picture), patch.object(improvement, "_SAMPLE", 2):
        given = {"output": output, "seeds": 2, "length": 1.5, "engine": "torch"}  # as the pipeline, in float64
        improve.main(run, [KEEP_ONE, *overrides], **given | options)
    return output


@pytest.fixture(scope="module")
def uninterrupted(run, tmp_path_factory) -> Path:
    return improved(run, tmp_path_factory.mktemp("improved") / "better")


def read_pairs(path: Path) -> list[tuple[str, str]]:
    return [(row["en"], row["de"]) for row in map(json.loads, path.read_text().splitlines())]


def by_pipeline(folder: Path, sentences: list[str]) -> list[str]:
    """Translations, empty for sentences of more than 64 tokens, which these runs leave out of training."""
    pipeline = load(folder)
    lengths = [len(ids) for ids in pipeline.tokenizer(list(sentences)).input_ids]
    found = [each["translation_text"] for each in pipeline(list(sentences))]
    return [text if length <= 64 else "" for text, length in zip(found, lengths, strict=True)]


def test_the_new_pairs_are_the_translations_by_all_models_without_duplicates(run, uninterrupted):
    work = uninterrupted.with_name("better-work")
    own = read_pairs(work / "data" / "train.jsonl")
    english, german = zip(*own, strict=True)
    assert len(own) == 40
    made = []
    for number, forward in ((1, run), (2, work / "forward-2")):
        made += zip(by_pipeline(work / f"backward-{number}", list(german)), german, strict=True)
        made += zip(english, by_pipeline(forward, list(english)), strict=True)
    expected = [pair for pair in dict.fromkeys(made) if pair not in set(own) and all(pair)]
    assert len(expected) > 40
    assert read_pairs(work / "data" / "synthetic.jsonl") == expected
    assert not (work / "forward-1").exists()


def test_the_models_have_the_run_s_recipe_but_for_seed_direction_and_length(run, uninterrupted):
    work, first = uninterrupted.with_name("better-work"), load_recipe(run / "recipe.yaml")
    backward, forward, final = (
        load_recipe(folder / "recipe.yaml") for folder in (work / "backward-2", work / "forward-2", uninterrupted)
    )
    assert (backward.data.source_language, backward.data.target_language) == ("de", "en")
    assert (forward.data.source_language, forward.data.target_language) == ("en", "de")
    assert (first.seed, backward.seed, forward.seed, final.seed) == (0, 1, 1, 0)
    assert backward.optimization == forward.optimization == first.optimization
    assert backward.model.overrides == first.model.overrides
    assert final.model.overrides == first.model.overrides | {"dropout": 0.067}  # two thirds of 0.1
    assert (final.optimization.max_steps, final.checkpoints.keep_last) == (9, 1)
    assert final.data.model_copy(update={"mix": []}) == first.data
    assert (uninterrupted / "tokenizer.json").read_text() == (run / "tokenizer.json").read_text()
    (record,) = read_metrics(uninterrupted, "run")
    assert record["train_pairs"] == 40 + len(read_pairs(work / "data" / "synthetic.jsonl"))
    held_out = set(read_pairs(work / "data" / "validation.jsonl"))
    assert len(held_out) == 10
    assert not held_out & set(read_pairs(work / "data" / "train.jsonl"))


def test_only_the_improved_model_has_trackers_and_alignments(run, tmp_path):
    plan = ImprovementPlan(ImprovementOptions(run, tmp_path / "better", overrides=("trackers=[tensorboard]",)))
    plan.recipe.evaluation.alignments, plan.recipe.trackers = True, ["tensorboard"]
    recipe = plan.recipe_of("backward", 1)
    assert (recipe.evaluation.alignments, recipe.trackers, plan.final.trackers) == (False, [], ["tensorboard"])


def plan_of(run, output, *overrides) -> ImprovementPlan:
    """The plan of `uninterrupted`, with further overrides."""
    overrides = (KEEP_ONE, *overrides)
    return ImprovementPlan(ImprovementOptions(run, output, length=1.5, overrides=overrides))


def test_the_work_folder_is_locked(run, uninterrupted):
    plan = plan_of(run, uninterrupted)
    with patch.object(work_folder.RunFolder, "lock", autospec=True) as lock:
        plan.start(improvement._pairs(plan))
    assert lock.call_args.args[0].path == plan.work.path


@pytest.mark.slow
def test_an_interrupted_improvement_resumes(run, uninterrupted, tmp_path, monkeypatch, capsys):
    """After it was killed in training, stopped between stages, and killed while it wrote a shard."""
    again = tmp_path / "better, perhaps"
    monkeypatch.setattr(work_folder, "SHARD", 15)
    with monkeypatch.context() as patch:
        kill_at_update(patch, 5)
        with pytest.raises(Killed):
            improved(run, again)
    with pytest.raises(SystemExit) as stopped:
        improved(run, again, max_minutes=0)
    assert stopped.value.code == 75
    assert "backward-1; repeat the command" in capsys.readouterr().err
    write, written = files.write_lines, []

    def write_or_die(path, texts):
        written.append(path)
        if len(written) == 3:
            raise Killed
        write(path, texts)

    with monkeypatch.context() as patch:
        patch.setattr(work_folder, "write_lines", write_or_die)
        with pytest.raises(Killed):
            improved(run, again)
    assert [path.name for path in written] == ["000000.txt", "000001.txt", "000002.txt"]
    with monkeypatch.context() as patch:
        kill_at_update(patch, 6 + 6 + 5)
        with pytest.raises(Killed):
            improved(run, again)
    improved(run, again)
    assert equal_weights(uninterrupted, again)
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    improved(run, again)
    assert f"scratch compare {run} '{again}'\n" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    shutil.rmtree(again.with_name("better, perhaps-work"))  # which a finished improvement does not need
    improved(run, again)
    assert not again.with_name("better, perhaps-work").exists()


def test_monolingual_text_is_translated_and_back_translations_are_tagged(run, tmp_path):
    too_long = "The dog " * 40  # training would drop it
    kept, several = "The {name} sees the dog.", "The cat sleeps. The dog sleeps."
    (tmp_path / "more.en").write_text(f"The cat sleeps.\n\nThe dog sleeps.\n{too_long}\n{kept}\n{several}\n")
    (tmp_path / "more.de").write_text("Der Hund schläft.\nDie Katze schläft.\n")
    texts = {"source_text": [tmp_path / "more.en"], "target_text": [tmp_path / "more.de"]}
    better = improved(run, tmp_path / "better", seeds=1, length=0.2, **texts)
    work = better.with_name("better-work")
    german = ["Der Hund schläft.", "Die Katze schläft."]
    assert read_pairs(work / "data" / "back-translated.jsonl") == [
        *zip(by_pipeline(work / "backward-1", german), german, strict=True)
    ]
    english = ["The cat sleeps.", "The dog sleeps.", kept, several]
    expected = {pair for pair in zip(english, by_pipeline(run, english), strict=True) if pair[1]}
    assert expected <= set(read_pairs(work / "data" / "synthetic.jsonl"))
    lines = (work / "translations" / "forward-1" / "000000.txt").read_text().splitlines()[-6:]
    assert [bool(line) for line in lines] == [True, False, True, False, True, True]
    assert lines[-2:] == by_pipeline(run, [kept, several])
    assert load_recipe(better / "recipe.yaml").data.mix[1].tag == "<bt>"


def test_a_dry_run_lists_the_stages_and_writes_nothing(run, uninterrupted, tmp_path, capsys):
    new = tmp_path / "new"
    improved(run, new, dry_run=True)
    *stages, _ = (line.rsplit("  ", 1)[0].strip() for line in capsys.readouterr().out.splitlines())
    models = ["backward-1", "forward-1", "backward-2", "forward-2"]  # the run itself is forward-1
    expected = [(f"train {each}", f"translate 40 sentences by {each}") for each in models]
    assert stages == [line for pair in expected for line in pair if line != "train forward-1"] + [f"train {new}"]
    assert not list(tmp_path.iterdir())
    improved(run, uninterrupted, dry_run=True)
    assert capsys.readouterr().out.splitlines()[0] == f"train {uninterrupted}  done"


def error_line(*arguments) -> str:
    """The error line of the command."""
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()
    result = CliRunner().invoke(app, ["improve", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


def test_a_folder_started_with_another_run_or_other_options_is_refused(run, pairs, uninterrupted, tmp_path):
    assert "optimization.max_steps" in error_line(run, "--output", uninterrupted, "--length", 3)
    finished = ["--output", uninterrupted, "--length", 1.5, "--seeds", 3, KEEP_ONE]
    assert "other seeds;" in error_line(run, *finished)
    own = tmp_path / "run"
    shutil.copytree(run, own)
    shutil.copytree(uninterrupted.with_name("better-work"), tmp_path / "run-improved-work")
    options = ["--length", 1.5, KEEP_ONE]
    assert "other seeds;" in error_line(own, "--seeds", 3, *options)
    assert "other length;" in error_line(own, KEEP_ONE)
    quick_run(own, *pairs, *SHORT, "data.validation_size=12", overwrite=True)
    assert "other pairs, weights of the run;" in error_line(own, *options)
    assert not (tmp_path / "run-improved").exists()


def test_options_for_memory_may_change_and_apply_to_all_models(run, uninterrupted):
    keys = ("evaluation.batch_size=3", "data.num_workers=1", "optimization.gradient_accumulation_steps=2")
    plan = plan_of(run, uninterrupted, *keys)
    plan.check_identity(improvement._pairs(plan))
    assert is_finished(plan.final)
    assert is_finished(plan.recipe_of("backward", 1))
    for recipe in (plan.final, plan.recipe_of("backward", 1), plan.recipe_of("forward", 2)):
        assert (recipe.evaluation.batch_size, recipe.optimization.gradient_accumulation_steps) == (3, 2)


def test_a_lack_of_memory_while_translating_comes_with_advice(run, tmp_path, capsys):
    def no_memory(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with patch.object(ShardedTranslation, "complete", no_memory), pytest.raises(SystemExit) as ended:
        improved(run, tmp_path / "better", seeds=1)
    assert ended.value.code == 2
    assert "evaluation.batch" in capsys.readouterr().err


def test_an_improved_model_is_pushed(run, uninterrupted):
    with patch("modeling_scratch.hub.push.push_run") as push, patch("modeling_scratch.hub.push.check_destination"):
        push.return_value.describe.return_value = "pushed"
        improved(run, uninterrupted, "hub.repository=ada/better")
    assert push.call_args.args[0].hub.repository == "ada/better"


@pytest.mark.parametrize("override", ["seed=1", "data.validation_size=5", "output_dir=x", "tokenizer.vocab_size=500"])
def test_keys_that_decide_the_pairs_cannot_be_overridden(override, run):
    assert f"must keep the run's {override.partition('=')[0]}" in error_line(run, override)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "--output", "RUN"], "the run's own folder"),
        (["RUN", "--output", "FILES"], "is not a run"),
        (["FILES"], "not the folder of a run"),
        (["RUN", "--target-text", "FILES/none"], "none: no such file"),
        (["RUN", "optimisation.max_steps=3"], "unknown recipe key 'optimisation'"),
        (["RUN", "model.overrides.droput=0.2"], "did you mean 'dropout'?"),
        (["RUN", "model.config=base"], "model.config"),
    ],
)
def test_bad_input_is_one_line(arguments, message, run, tmp_path):
    (tmp_path / "notes.txt").touch()
    line = error_line(*(each.replace("RUN", str(run)).replace("FILES", str(tmp_path)) for each in arguments))
    assert message in line


def test_fine_tuned_and_unfinished_runs_cannot_be_improved(run, tmp_path):
    other = tmp_path / "run"
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("checkpoints"))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["model"] = {"start_from": "another"}
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert "fine-tuned from another" in error_line(other)
    lines = [json.dumps(each) + "\n" for each in read_metrics(run) if "final" not in each]
    (other / "metrics.jsonl").write_text("".join(lines))
    assert "is not finished" in error_line(other)


def test_processes_translate_each_sentence_once(run, tmp_path):
    """In the last round, the second process has nothing to translate."""
    sentences, shards = [f"The dog sees {number} cats." for number in range(70)], tmp_path / "shards"
    run_group(tmp_path, 2, translate_in_shards, str(run), str(shards), sentences, 30)
    found = [path.read_text().splitlines() for path in sorted(shards.glob("*.txt"))]
    assert [len(shard) for shard in found] == [30, 30, 10]
    assert [line for shard in found for line in shard] == by_pipeline(run, sentences)
    assert sorted((tmp_path / "shards.calls").read_text().split()) == ["10", "30", "30"]


@pytest.mark.slow
def test_two_processes_run_all_stages(run, tmp_path):
    run_group(tmp_path, 2, improve_one, str(run), str(tmp_path / "better"), {"seeds": 1, "length": 0.5})
    work = tmp_path / "better-work"
    (record,) = read_metrics(tmp_path / "better", "run")
    assert (record["processes"], record["train_pairs"]) == (2, 40 + len(read_pairs(work / "data" / "synthetic.jsonl")))
    german = [target for _, target in read_pairs(work / "data" / "train.jsonl")]
    found = (work / "translations" / "backward-1" / "000000.txt").read_text().splitlines()
    assert found == by_pipeline(work / "backward-1", german)


def test_a_shard_with_too_many_lines_is_named(tmp_path):
    (tmp_path / "000000.txt").write_text("Eins.\nZwei.\n")
    with pytest.raises(UserError, match=r"000000.txt: .* delete it"):
        ShardedTranslation(tmp_path, ["One."], "x").read()
