"""`scratch compare`: what the runs' records say, means as numpy has them, significance by resampling anew."""

import json
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import yaml
from conftest import few_sentences, quick_run, read_metrics
from matplotlib.image import imread
from matplotlib.text import Text
from typer.testing import CliRunner

from modeling_scratch.__main__ import app
from modeling_scratch.metrics import bleu_significance, score
from modeling_scratch.training.curves import comparison_figure
from modeling_scratch.training.folder import write_translations

REFERENCES = [
    "Der alte Mann gibt dem Kind heute ein Buch.",
    "Die Katze schläft den ganzen Tag auf dem Sofa.",
    "Wir fahren morgen mit dem Zug in die Stadt.",
    "Sie liest ihrer Tochter jeden Abend eine Geschichte vor.",
    "Der Hund läuft schnell über die grüne Wiese.",
    "Ich habe gestern drei rote Äpfel gekauft.",
]
GOOD = [
    REFERENCES[0],
    "Die Katze schläft den ganzen Tag auf dem Bett.",
    *REFERENCES[2:5],
    "Ich kaufte drei rote Äpfel.",
]
POOR = [*(line.replace(" dem ", " der ").replace("Die ", "Eine ") for line in REFERENCES[:4]), *GOOD[4:]]
RUN = {"step": 0, "split": "run", "parameters": 2093568}


def compare(*arguments, code: int = 0):
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def facts(*runs) -> dict:
    return json.loads(compare(*runs, "--json"))


@pytest.fixture
def make(tmp_path):
    """Makes the folder of a run of 20 updates, with translations of six sentences."""

    def make(name: str, translations=GOOD, records=(), references=REFERENCES, **recipe) -> Path:
        folder = tmp_path / name
        data = tmp_path / f"data-{abs(hash(tuple(references)))}"
        data.mkdir(exist_ok=True)
        (data / "test.en").write_text("".join(f"sentence {n}\n" for n in range(len(references))), encoding="utf-8")
        (data / "test.de").write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
        content = {"output_dir": name, "optimization": {"max_steps": 20}, "data": {"test_files": str(data / "test")}}
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(content | recipe))
        train = {"step": 20, "split": "train", "loss": 2.0, "target_tokens": 12345, "seconds": 75.0}
        written = [RUN, {"step": 10, "split": "validation", "loss": 2.5, "bleu": 30.0}, train, *records]
        if translations is not None:
            scores = score([""] * len(translations), translations, references[: len(translations)])
            written += [{"step": 20, "split": "test", "final": True, "sentences": len(translations), **scores}]
            write_translations(folder, "test", translations)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in written))
        return folder

    return make


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    options = ["evaluation.also=[ter]", "optimization.max_steps=4"]
    return [quick_run(folder / f"seed-{seed}", f"seed={seed}", *options) for seed in (0, 1)]


def test_trained_runs_are_shown_with_what_they_recorded(two_seeds):
    found = facts(*two_seeds)
    for run, shown in zip(two_seeds, found["runs"], strict=True):
        train, (final,) = read_metrics(run, "train")[-1], read_metrics(run, "test")
        assert (shown["name"], shown["finished"], shown["updates"]) == (run.name, True, 4)
        assert (shown["target_tokens"], shown["minutes"]) == (train["target_tokens"], train["seconds"] / 60)
        assert shown["parameters"] == read_metrics(run, "run")[0]["parameters"]
        assert final.pop("samples")  # not shown
        assert shown["scores"] == {"test": final}
    assert found["differences"] == {"seed": [0, 1]}
    assert found["notes"] == []


def test_the_mean_of_seeds_is_numpy_s(two_seeds):
    found = facts(*two_seeds)
    (group,) = found["groups"]
    for metric, title in (("chrf", "test chrF"), ("ter", "test TER")):
        values = [run["scores"]["test"][metric] for run in found["runs"]]
        assert group["numbers"][title] == pytest.approx([np.mean(values), np.std(values, ddof=1)])
    assert group["numbers"]["updates"] == [4, 0]


def test_the_significance_of_trained_runs_is_of_the_translations_they_kept(two_seeds):
    references = Path(f"{few_sentences()[2].partition('=')[2]}.de").read_text(encoding="utf-8").splitlines()
    kept = [(run / "translations" / "test.txt").read_text(encoding="utf-8").splitlines() for run in two_seeds]
    (found,) = facts(*two_seeds)["significance"]
    assert (found["difference"], found["p_value"], found["signature"]) == bleu_significance(*kept, references, "de")


def test_the_table_has_a_row_a_run_and_one_for_the_mean(make):
    runs = [make("a", seed=1), make("b", POOR, seed=2), make("c", POOR, seed=2, precision="float32")]
    lines = [line for line in compare(*runs).splitlines() if line.startswith("|")][:6]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    good, poor = (sacrebleu.corpus_bleu(texts, [REFERENCES]).score for texts in (GOOD, POOR))
    assert header[:6] == ["run", "updates", "minutes", "target tokens", "parameters", "test BLEU"]
    assert rows[0][:5] == ["a", "20", "1.2", "12,345", "2,093,568"]
    assert rows[0][5].startswith(f"{good:.2f} ± ")
    assert rows[3][0] == "mean of a, b"
    assert rows[3][5] == f"{(good + poor) / 2:.2f} (sd {abs(good - poor) / 2**0.5:.2f})"
    assert len({len(line) for line in lines}) == 1


def test_unfinished_runs_are_shown_with_what_they_have(make):
    begun, going_on = make("begun", None), make("going-on", None)
    (begun / "metrics.jsonl").write_text(json.dumps(RUN) + '\n{"step": 1, "spl')
    text = compare(make("a"), begun, going_on)
    assert "| begun (not finished)" in text
    assert "no significance of begun against a: begun is not finished" in text
    unfinished = facts(*(make(f"{name}/x", None) for name in "de"), begun)["runs"]
    assert [run["scores"].get("validation so far", {}).get("bleu") for run in unfinished] == [30.0, 30.0, None]
    assert [Path(run["name"]).parts[-2:] for run in unfinished[:2]] == [("d", "x"), ("e", "x")]


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_the_precision_is_what_runs_trained_in(make):
    trained = [[RUN | {"mixed_precision": precision}] for precision in ("bf16", "no", "bf16")]
    runs = [make(f"{number}", records=each, seed=number) for number, each in enumerate(trained)]
    assert facts(*runs[:2])["differences"] == {"precision": ["bf16", "float32"]}
    assert [group["runs"] for group in facts(*runs)["groups"]] == [["0", "2"]]


def test_what_has_no_effect_on_the_model_does_not_tell_runs_apart(make):
    runs = [make("a", seed=1), make("b", seed=2, hub={"repository": "ada/b"}, logging_steps=7)]
    found = facts(*runs)
    assert found["differences"] == {"seed": [1, 2]}
    assert [group["runs"] for group in found["groups"]] == [["a", "b"]]


def test_differing_keys_are_shown_with_their_values(make):
    runs = [make("a", optimization={"max_steps": 20, "betas": [0.9, 0.99]}), make("b", seed=3, precision="bf16")]
    assert facts(*runs)["differences"] == {
        "optimization.betas": [[0.9, 0.99], [0.9, 0.98]],
        "precision": ["auto", "bf16"],
    }
    assert facts(*runs)["groups"] == []
    assert "The recipes are the same." in compare(make("c"), make("d"))


# -- significance ------------------------------------------------------------------------------------------------------


def test_the_p_value_is_that_of_texts_resampled_and_scored_anew():
    @cache  # BLEU does not depend on the order of sentences, so that most of the 1,000 samples have come before
    def bleu_of(texts, rows):
        return sacrebleu.corpus_bleu([texts[row] for row in rows], [[REFERENCES[row] for row in rows]]).score

    def bleu(texts, rows):
        return bleu_of(tuple(texts), tuple(sorted(rows)))

    drawn = np.random.default_rng(12345).choice(6, size=(1000, 6), replace=True)
    differences = np.array([abs(bleu(POOR, rows) - bleu(GOOD, rows)) for rows in drawn])
    real = bleu(POOR, range(6)) - bleu(GOOD, range(6))
    more_extreme = (differences - differences.mean() > abs(real) + 1e-4).sum()
    difference, p_value, signature = bleu_significance(GOOD, POOR, REFERENCES, "en")
    assert difference == pytest.approx(real)
    assert p_value == pytest.approx((more_extreme + 1) / 1001, abs=0.002)
    assert "|bs:1000|seed:12345|" in signature


def test_the_same_translations_do_not_differ(make):
    (found,) = facts(make("a"), make("b"))["significance"]
    assert (found["difference"], found["p_value"]) == (0, 1)


def without_translations(run):
    (run / "translations" / "test.txt").unlink()


def of_a_later_scoring(run):
    write_translations(run, "test", GOOD[:4])


def with_other_references(run):
    data = yaml.safe_load((run / "recipe.yaml").read_text())["data"]["test_files"]
    path = Path(f"{data}.de")
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")


def without_data(run):
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"data": {"test_files": str(run / "gone")}}))


@pytest.mark.parametrize(
    ("options", "change", "why"),
    [
        ({}, without_translations, "b/translations/test.txt: no such file or directory; scratch train --resume"),
        ({}, of_a_later_scoring, "b has other translations than those that it scored"),
        ({}, with_other_references, "the test set has changed since it was scored"),
        ({}, without_data, "the data of b cannot be read: "),
        ({"translations": GOOD[:4]}, None, "they translated 6 and 4 sentences"),
        ({"references": ["Etwas anderes.", *REFERENCES[1:]]}, None, "their recipes have different sentences in it"),
        (
            {"translations": None, "records": [{"step": 9, "split": "test", "name": "new", "final": True, "bleu": 1}]},
            None,
            "b was not scored on it",
        ),
    ],
)
def test_without_significance_a_line_says_why(options, change, why, make):
    first, second = make("a"), make("b", **options)
    if change is not None:
        change(second)
    text = compare(first, second)
    assert "paired bootstrap" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("no significance of b against a on test: ")]
    assert why in line


def test_scores_computed_in_different_ways_are_told_apart(make):
    other = make("b")
    (other / "metrics.jsonl").write_text((other / "metrics.jsonl").read_text().replace("tok:13a", "tok:intl"))
    assert "test BLEU was computed in different ways" in "".join(facts(make("a"), other)["notes"])


def test_scores_of_normalized_text_are_compared_with_others(make):
    """One run writes accents as characters of their own, or marks that nobody sees."""
    decomposed = [unicodedata.normalize("NFD", line).replace(" ", " \u200e") for line in GOOD]
    found = facts(make("a"), make("b", decomposed))
    assert found["notes"] == []
    signatures = [run["scores"]["test"]["bleu_signature"] for run in found["runs"]]
    assert signatures[1] == f"{signatures[0]}|normalized:NFC, nothing invisible"
    (tested,) = found["significance"]
    assert (tested["difference"], tested["p_value"]) == (0, 1)
    assert tested["signature"].endswith("|normalized:NFC, nothing invisible")


# -- the picture -------------------------------------------------------------------------------------------------------


def curve(*points):
    return [{"step": step, "split": "validation", "loss": loss} | scores for step, loss, scores in points]


CURVES = {
    "_seed-0": curve((10, 3.0, {}), (20, 2.0, {"bleu": 20.0, "chrf": 40.0})),
    "$costs$": curve((10, 2.8, {"bleu": 10.0})),
    "nothing-yet": [RUN],
}


def test_the_picture_has_a_line_a_run_named_for_its_folder():
    figure = comparison_figure(CURVES)
    loss, bleu, chrf = figure.axes
    assert [line.get_xydata().tolist() for line in loss.lines] == [[[10, 3.0], [20, 2.0]], [[10, 2.8]], []]
    assert [line.get_xydata().tolist() for line in bleu.lines] == [[[20, 20.0]], [[10, 10.0]], []]
    assert [len(line.get_xydata()) for line in chrf.lines] == [1, 0, 0]
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(CURVES)
    assert [line.get_color() for line in legend.get_lines()] == [line.get_color() for line in loss.lines]


def test_runs_without_scores_have_a_picture_of_their_loss(make, tmp_path):
    assert len(comparison_figure({"a": curve((1, 2.0, {})), "b": [RUN]}).axes) == 1


def test_text_in_the_picture_is_readable_at_740_pixels(make, tmp_path):
    compare(make("a"), make("b"), "--out", tmp_path / "new" / "curves.png")
    figure, width = comparison_figure(CURVES), imread(tmp_path / "new" / "curves.png").shape[1]
    pixels = 200 / 72 * 740 / width  # of a point, at 200 dots an inch
    texts = [title for axis in figure.axes for title in axis.findobj(Text) if title.get_text()]
    texts += [text for axis in figure.axes for text in axis.get_xticklabels()]
    assert min(text.get_fontsize() * pixels for text in [*texts, *figure.legends[0].get_texts()]) >= 10


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "name two runs or more to compare"),
        (["a", "b", "b/"], "are the same run; name each once"),
        (["a", "none"], "none: no such folder"),
        (["a", "empty"], "empty: not a run's folder: it has no recipe.yaml"),
        (["a", "no-records"], "no-records/metrics.jsonl: no records yet"),
        (["a", "bad-recipe"], "bad-recipe: recipe.yaml: optimization"),
        (["a", "b", "--out", "picture.svg"], "give a name that ends in .png"),
    ],
)
def test_bad_input_is_one_line(arguments, message, make, tmp_path, monkeypatch):
    for name in ("a", "b", "no-records", "bad-recipe"):
        make(name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "no-records" / "metrics.jsonl").unlink()
    (tmp_path / "bad-recipe" / "recipe.yaml").write_text("output_dir: x\n")
    monkeypatch.chdir(tmp_path)
    (line,) = compare(*arguments, code=2).splitlines()
    assert message in line
    assert not Path("picture.svg").exists()
