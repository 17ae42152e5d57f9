"""`scratch distill`: the teachers' pairs against `generate`, the student's recipe, resuming, and models of others."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import yaml
from accelerate import Accelerator
from conftest import Killed, equal_weights, few_sentences, forget_accelerator, kill_at_update, quick_run
from safetensors.torch import load_file, save_file
from train_on_processes import no_picture
from typer.testing import CliRunner

from modeling_scratch import files
from modeling_scratch.apps.experiments import work_folder
from modeling_scratch.apps.experiments.distill import DistillationOptions, DistillationPlan
from modeling_scratch.apps.experiments.teachers import EngineTeacher
from modeling_scratch.commands import app, distill, train
from modeling_scratch.data.batches import plan_epoch
from modeling_scratch.data.sources import load_pairs
from modeling_scratch.hub.card import build_card
from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers, load_translator
from modeling_scratch.model.translations import Translation, distinct
from modeling_scratch.recipe import find_recipe
from modeling_scratch.recipe.reading import load_recipe, recipe_text
from modeling_scratch.run import curves
from modeling_scratch.run.processes import StopRequest
from modeling_scratch.run.records import RunRecords
from modeling_scratch.training.preparation import prepare

LONG = ["optimization.max_epochs=25", "optimization.max_steps=null", "optimization.learning_rate=1e-2"]
LONG += [
    "optimization.warmup_steps=10",
    "evaluation.every=1000",
    "evaluation.max_new_tokens=40",
    "data.kept_words=false",
]
SHORT = ["optimization.max_epochs=null", "optimization.max_steps=6", "evaluation.every=6", "checkpoints.every=3"]
SHORT += ["optimization.warmup_steps=2"]
SMALL = ["model.overrides={encoder_layers: 2, d_model: 16, encoder_attention_heads: 2, decoder_attention_heads: 2}"]
GIVEN = {"n_best": 3, "engine": "torch"}


@pytest.fixture(scope="module", autouse=True)
def float64():
    """In float32, translations would depend on the batch, and an interrupted distillation would make other pairs."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A teacher whose outputs end."""
    return quick_run(tmp_path_factory.mktemp("runs") / "run", *few_sentences(60), *LONG)


def distilled(teacher: Path | str, output: Path, *overrides: str, **options) -> Path:
    """Run the command in this process."""
    forget_accelerator()
    with patch.object(curves, "plot_curves", no_picture):
        distill.main(str(teacher), [*SHORT, *SMALL, *overrides], output=output, **GIVEN | options)
    return output


@pytest.fixture(scope="module")
def uninterrupted(run, tmp_path_factory) -> Path:
    return distilled(run, tmp_path_factory.mktemp("distilled") / "student")


def read_pairs(work: Path) -> list[tuple[str, str]]:
    rows = (json.loads(line) for line in (work / "data" / "teacher.jsonl").read_text().splitlines())
    return [(row["en"], row["de"]) for row in rows]


def by_generate(model, source, target, sentence: str, count: int, most: int, **settings) -> list[tuple[str, str]]:
    """Pairs of a sentence and its translations that end, without repeats."""
    settings |= {"num_beams": max(count, model.generation_config.num_beams or 1), "num_return_sequences": count}
    inputs = source(sentence, return_tensors="pt")
    made = model.generate(
        input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=most, **settings
    )
    end = model.generation_config.eos_token_id
    prefix = 1 + ("forced_bos_token_id" in settings)
    ended = [row for row in made[:, prefix:] if end in row]
    found = dict.fromkeys(target.decode(row, skip_special_tokens=True).strip() for row in ended)
    return [(sentence, text) for text in found if text]


def test_the_student_learns_from_the_n_best_translations_of_each_source(run, uninterrupted):
    pairs = read_pairs(uninterrupted.with_name("student-work"))
    recipe = load_recipe(run / "recipe.yaml")
    sources = list(dict.fromkeys(load_pairs(recipe.data, recipe.seed)["train"]["source"]))
    limit, most = recipe.data.max_source_tokens, recipe.evaluation.max_new_tokens
    source, target = load_tokenizers(str(run))
    model = load_translator(str(run))
    fitting = [text for text in sources if len(source(text).input_ids) <= limit]
    expected = [pair for text in fitting for pair in by_generate(model, source, target, text, 3, most)]
    assert len(expected) > 1.5 * len(sources)
    assert pairs == expected


def test_the_student_has_the_recipe_but_for_shape_search_and_pairs(run, uninterrupted):
    teacher, student = (load_recipe(folder / "recipe.yaml") for folder in (run, uninterrupted))
    fields = student.model.overrides
    assert (fields["encoder_layers"], fields["decoder_layers"], fields["d_model"]) == (2, 1, 16)
    assert (student.evaluation.num_beams, student.evaluation.metric) == (1, "bleu")
    (mixed,) = student.data.mix
    assert mixed.translated_by == ["run"]
    assert (student.data.weight, mixed.weight) == (0.2, pytest.approx(0.8 / 3))
    assert student.data.model_copy(update={"mix": [], "weight": 1.0}) == teacher.data
    assert json.loads((uninterrupted / "generation_config.json").read_text()).get("num_beams", 1) == 1
    assert (uninterrupted / "tokenizer.json").read_text() == (run / "tokenizer.json").read_text()


def test_an_epoch_has_the_shares_of_pairs_that_were_asked_for():
    lengths, weights = torch.ones(1200).int().numpy(), torch.tensor([0.2] * 300 + [0.8 / 3] * 900).numpy()
    counts = torch.zeros(2)
    for epoch in range(20):
        rows = torch.cat(
            [torch.as_tensor(batch) for batch in plan_epoch(lengths, lengths, 64, 0, epoch, weights).batches]
        )
        counts += torch.tensor([(rows < 300).sum(), (rows >= 300).sum()])
    assert counts[0].item() / 20 == pytest.approx(60, abs=6)
    assert counts[1].item() / 20 == pytest.approx(240, abs=12)


def test_an_interrupted_distillation_resumes(run, uninterrupted, tmp_path, monkeypatch, capsys):
    """After it was killed while it wrote a part, stopped, and killed before it wrote the pairs and in training."""
    again = tmp_path / "student, perhaps"
    monkeypatch.setattr(work_folder, "SHARD", 25)
    write_lines, write_whole, written = files.write_lines, files.write_whole, []

    def write_or_die(path, texts):
        written.append(path.name)
        if len(written) == 2:
            raise Killed
        write_lines(path, texts)

    def die_at_pairs(path, text):
        if path.name == "teacher.jsonl":
            raise Killed
        write_whole(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(work_folder, "write_lines", write_or_die)
        with pytest.raises(Killed):
            distilled(run, again)
    assert written == ["000000.txt", "000001.txt"]
    with pytest.raises(SystemExit) as stopped:
        distilled(run, again, max_minutes=0)
    assert stopped.value.code == 75
    assert "repeat the command" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(work_folder, "write_whole", die_at_pairs)
        with pytest.raises(Killed):
            distilled(run, again)
    with monkeypatch.context() as patch:
        kill_at_update(patch, 5)
        with pytest.raises(Killed):
            distilled(run, again)
    distilled(run, again)
    assert equal_weights(uninterrupted, again)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    distilled(run, again)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    shutil.rmtree(again.with_name("student, perhaps-work"))  # which a finished student does not need
    distilled(run, again)
    assert not again.with_name("student, perhaps-work").exists()


def test_a_student_of_another_shape_uses_the_same_translations(run, uninterrupted, tmp_path):
    work = uninterrupted.with_name("student-work")
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*.txt")}
    assert before
    other = distilled(run, tmp_path / "wide", "model.overrides.d_model=24", work=work, original=0.5)
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.txt")} == before
    assert load_recipe(other / "recipe.yaml").data.weight == 0.5
    assert load_translator(str(other)).config.d_model == 24


def test_several_teachers_are_an_ensemble(run, tmp_path):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    save_file({name: 0.9 * tensor for name, tensor in weights.items()}, other / "model.safetensors", {"format": "pt"})
    student = distilled(run, tmp_path / "student", str(other), work=tmp_path / "work")
    translator = Translator.load([str(run), str(other)])
    sources = list(dict.fromkeys(source for source, _ in read_pairs(tmp_path / "work")))
    beams = max(3, load_recipe(run / "recipe.yaml").evaluation.num_beams)
    rows = translator.translate(sources, num_beams=beams, num_return_sequences=3)
    assert read_pairs(tmp_path / "work") == [
        (source, each.text)
        for source, row in zip(sources, rows, strict=True)
        for each in distinct(row)
        if each.text and not each.is_cut
    ]
    assert load_recipe(student / "recipe.yaml").data.mix[0].translated_by == ["run", "other"]


def test_further_text_is_translated_too(run, tmp_path):
    (tmp_path / "more.en").write_text("The cat sleeps.\n\nThe dog sleeps.\nThe cat sleeps.\n")
    distilled(run, tmp_path / "student", source_text=[tmp_path / "more.en"])
    sources = [source for source, _ in read_pairs(tmp_path / "student-work")]
    known = {pair["source"] for pair in load_pairs(load_recipe(run / "recipe.yaml").data, 0)["train"]}
    assert {"The cat sleeps.", "The dog sleeps."} - known <= set(sources)
    assert 0 < sources.count("The cat sleeps.") <= 3


def test_the_card_names_the_teachers_and_claims_no_license(run, uninterrupted, tmp_path):
    card = str(build_card(uninterrupted, "ada/student", RunRecords(uninterrupted)))
    assert "targets written by run" in card
    folder = tmp_path / "student"
    shutil.copytree(uninterrupted, folder)
    text = (folder / "recipe.yaml").read_text().replace("- run\n", "- ada/teacher\n")
    (folder / "recipe.yaml").write_text(text.replace("license: apache-2.0", "license: null"))
    card = str(build_card(folder, "ada/student", RunRecords(folder)))
    assert "written by [ada/teacher](https://huggingface.co/ada/teacher)" in card
    assert "license:" not in card.split("---")[1]


# -- errors ------------------------------------------------------------------------------------------------------------


def error_line(*arguments) -> str:
    forget_accelerator()
    result = CliRunner().invoke(app, ["distill", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FILES"], "has no recipe.yaml; name the recipe"),
        (["someone/model"], "--output"),
        (["RUN", "--original", "1"], "less than 1"),
        (["RUN", "--source-text", "FILES/none"], "none: no such file"),
        (["RUN", "output_dir=x"], "--output"),
        (["RUN", "--output", "FILES/x", "--work", "FILES/x"], "is the student's folder"),
        (["RUN", "--output", "FILES"], "is not a run"),
        (["RUN", "model.overrides.droput=0.2"], "did you mean 'dropout'?"),
    ],
)
def test_bad_input_is_one_line(arguments, message, run, tmp_path):
    (tmp_path / "notes.txt").touch()
    line = error_line(*(each.replace("RUN", str(run)).replace("FILES", str(tmp_path)) for each in arguments))
    assert message in line


def test_a_work_folder_of_others_is_refused(run, uninterrupted, tmp_path):
    work = uninterrupted.with_name("student-work")
    assert "other n_best;" in error_line(run, "--work", work, "--output", tmp_path / "x", "--n-best", 2)
    plan = DistillationPlan(DistillationOptions((str(run),), tmp_path / "x", n_best=3, work=work))
    with pytest.raises(ValueError, match="other sentences;"):
        plan.check_identity(["Another."])


def test_what_decides_the_translations_cannot_change(run, uninterrupted, tmp_path, monkeypatch):
    """While a student is in training, and where another one uses the same work folder."""
    out, work = tmp_path / "student", tmp_path / "student-work"
    with monkeypatch.context() as patch:
        kill_at_update(patch, 2)
        with pytest.raises(Killed):
            distilled(run, out)
    (tmp_path / "more.en").write_text("The cat sleeps.\n")
    given = ["--n-best", 3, *SHORT, *SMALL]
    assert "other source_text;" in error_line(run, "--output", out, "--source-text", tmp_path / "more.en", *given)
    others = ["--output", tmp_path / "other", "--work", work, *given]
    assert "other lengths" in error_line(run, *others, "data.max_source_tokens=50")
    german = ["data.target_language=fr", "data.source_column=en", "data.target_column=de"]
    assert "other languages" in error_line(run, *others, *german)
    distilled(run, out)
    assert equal_weights(uninterrupted, out)


def test_a_fine_tuned_teacher_needs_a_recipe(run, tmp_path):
    tuned = Path(shutil.copytree(run, tmp_path / "tuned"))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    (tuned / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"model": {"start_from": "another"}}))
    assert "was fine-tuned" in error_line(tuned)


def test_the_student_has_the_tokenizers_of_any_run(run, tmp_path):
    """Of whole symbols, for pairs without languages; and one for each side."""
    both = quick_run(tmp_path / "two", *few_sentences(60), *LONG, "optimization.max_epochs=2", "tokenizer.shared=false")
    dates = few_dates(tmp_path)
    for teacher in (both, dates):
        plan = DistillationPlan(DistillationOptions((str(teacher),), tmp_path / "student", n_best=2))
        assert plan.final.tokenizer.existing == str(teacher)
        data, _ = prepare(plan.final.model_copy(update={"data": plan.recipe.data}), Accelerator(), None)
        assert [side.get_vocab() for side in data.tokenizers] == [
            side.get_vocab() for side in load_tokenizers(str(teacher))
        ]


def few_dates(folder: Path) -> Path:
    """A run of the recipe `dates`, on few pairs."""
    recipe = load_recipe(find_recipe("dates"), [f"output_dir={folder / 'dates'}", "data.embedded_size=60"])
    changes = ["evaluation.max_new_tokens=20", "optimization.max_epochs=null", "optimization.max_steps=2"]
    (folder / "dates.yaml").write_text(recipe_text(recipe))
    with patch.object(curves, "plot_curves", no_picture):
        train.main([*changes, *SMALL], config=str(folder / "dates.yaml"))
    return folder / "dates"


@pytest.mark.parametrize(
    ("license", "kept"), [("mit", "mit"), ("[mit, apache-2.0]", None), ("3.0", "3.0"), ("Mit License!", None)]
)
def test_only_a_license_that_a_card_may_name_is_kept(license, kept, run, tmp_path):
    teacher = Path(shutil.copytree(run, tmp_path / "teacher"))
    (teacher / "README.md").write_text(f"---\nlicense: {license}\n---\n")
    plan = DistillationPlan(DistillationOptions((str(teacher),), tmp_path / "student"))
    assert plan.final.hub.license == kept


def test_no_original_pairs_leaves_out_those_of_the_mix(run, tmp_path):
    files = {"files": str(tmp_path / "more.jsonl"), "tag": "<bt>"}
    (tmp_path / "more.jsonl").write_text('{"en": "A dog.", "de": "Ein Hund."}\n')
    mixed = DistillationOptions((str(run),), tmp_path / "x", original=0, overrides=(f"data.mix=[{json.dumps(files)}]",))
    (only,) = DistillationPlan(mixed).final.data.mix
    assert only.translated_by == ["run"]
    assert DistillationPlan(mixed).final.data.weight == 0


def test_translations_that_lost_a_kept_word_are_not_taught():
    row = [
        Translation("Ein.", lost_words=True),
        Translation("Zwei.", is_cut=True),
        Translation("Drei."),
        Translation(""),
    ]
    engine = SimpleNamespace(num_beams=2, tokenize=lambda texts: [[5]] * len(texts), translate=lambda *_, **__: [row])
    assert EngineTeacher(engine, 10, {}, StopRequest(), 4)(["Three."]) == [["Drei."]]
