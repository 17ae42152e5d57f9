"""`scratch compare`: what runs recorded, means over seeds, differing recipes, the significance of differences."""

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
from typer.testing import CliRunner

from modeling_scratch.commands import app
from modeling_scratch.metrics import bleu_significance, score
from modeling_scratch.run.curves import comparison_figure
from modeling_scratch.run.records import write_translations

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
    """Make the folder of a run of 20 updates, with translations of six sentences."""

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


def test_trained_runs_are_shown_as_they_recorded_with_means_over_seeds(tmp_path):
    options = ["evaluation.also=[ter]", "optimization.max_steps=4"]
    runs = [quick_run(tmp_path / f"seed-{seed}", f"seed={seed}", *options) for seed in (0, 1)]
    found = facts(*runs)
    for run, shown in zip(runs, found["runs"], strict=True):
        train, (final,) = read_metrics(run, "train")[-1], read_metrics(run, "test")
        assert (shown["name"], shown["finished"], shown["updates"]) == (run.name, True, 4)
        assert (shown["target_tokens"], shown["minutes"]) == (train["target_tokens"], train["seconds"] / 60)
        assert shown["parameters"] == read_metrics(run, "run")[0]["parameters"]
        assert final.pop("samples")  # not shown
        assert shown["scores"] == {"test": final}
    assert found["differences"] == {"seed": [0, 1]}
    assert found["notes"] == []
    (group,) = found["groups"]
    for metric, title in (("chrf", "test chrF"), ("ter", "test TER")):
        values = [run["scores"]["test"][metric] for run in found["runs"]]
        assert group["numbers"][title] == pytest.approx([np.mean(values), np.std(values, ddof=1)])
    references = Path(f"{few_sentences()[2].partition('=')[2]}.de").read_text(encoding="utf-8").splitlines()
    kept = [(run / "translations" / "test.txt").read_text(encoding="utf-8").splitlines() for run in runs]
    (tested,) = found["significance"]
    assert (tested["difference"], tested["p_value"], tested["signature"]) == bleu_significance(*kept, references, "de")


def test_the_table_has_a_row_per_run_and_one_for_the_mean(make):
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


def test_unfinished_runs_are_shown_with_their_scores_so_far(make):
    started, training = make("started", None), make("training", None)
    (started / "metrics.jsonl").write_text(json.dumps(RUN) + '\n{"step": 1, "spl')
    text = compare(make("a"), started, training)
    assert "| started (not finished)" in text
    assert "started against a: started is not finished" in text
    unfinished = facts(*(make(f"{name}/x", None) for name in "de"), started)["runs"]
    assert [run["scores"].get("validation so far", {}).get("bleu") for run in unfinished] == [30.0, 30.0, None]
    assert [Path(run["name"]).parts[-2:] for run in unfinished[:2]] == [("d", "x"), ("e", "x")]


def test_scores_with_noise_are_further_columns_of_the_runs_that_have_them(make):
    runs = [make("a", seed=1), make("b", seed=2), make("c", precision="float32")]
    for run, bleu in zip(runs[:2], (20.0, 30.0), strict=True):
        *others, final = read_metrics(run)
        final["noise"] = {"misspell": {"bleu": bleu, "chrf": 1.0, "differences": {"bleu": -5.0, "chrf": -4.0}}}
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (*others, final)))
    lines = [line for line in compare(*runs).splitlines() if line.startswith("|")][:6]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    place = rows[0].index("test BLEU, misspell")
    assert [row[place] for row in rows[2:]] == ["20.00", "30.00", "", "25.00 (sd 7.07)"]
    assert not any("chrF, misspell" in title for title in rows[0])


# -- recipes -----------------------------------------------------------------------------------------------------------


def trained_in(used, **recipe):
    return {"records": [RUN | {"mixed_precision": used}], **recipe}


@pytest.mark.parametrize(
    ("first", "second", "differences", "is_group"),
    [
        ({}, {}, {}, False),
        ({"seed": 1}, {"seed": 2}, {"seed": [1, 2]}, True),
        # Keys without effect on the model do not count.
        ({"seed": 1}, {"seed": 2, "hub": {"repository": "ada/b"}, "logging_steps": 7}, {"seed": [1, 2]}, True),
        # The precision is the one that runs trained in.
        (trained_in("bf16", seed=1), trained_in("bf16", seed=2, precision="bf16"), {"seed": [1, 2]}, True),
        (trained_in("bf16", seed=1), trained_in("no", seed=2), {"precision": ["bf16", "float32"]}, False),
        (
            {"optimization": {"max_steps": 20, "betas": [0.9, 0.99]}},
            {"seed": 3, "precision": "bf16"},
            {"optimization.betas": [[0.9, 0.99], [0.9, 0.98]], "precision": ["auto", "bf16"]},
            False,
        ),
    ],
)
def test_recipes_are_compared_and_runs_grouped_by_seed(first, second, differences, is_group, make):
    found = facts(make("a", **first), make("b", **second))
    assert found["differences"] == differences
    assert [group["runs"] for group in found["groups"]] == [["a", "b"]] * is_group


# -- significance ------------------------------------------------------------------------------------------------------


def test_the_p_value_is_that_of_scoring_resampled_texts():
    @cache  # most of the 1,000 samples repeat others in another order, which BLEU ignores
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
        ({}, without_translations, "b/translations/test.txt: no such file"),
        ({}, of_a_later_scoring, "the outputs of b are not those that were scored"),
        ({}, with_other_references, "BLEU was"),
        ({}, without_data, "the data of b cannot be read: "),
        ({"translations": GOOD[:4]}, None, "6 and 4 sentences"),
        ({"references": ["Etwas anderes.", *REFERENCES[1:]]}, None, "the sentences in their recipes differ"),
        (
            {"translations": None, "records": [{"step": 9, "split": "test", "name": "new", "final": True, "bleu": 1}]},
            None,
            "b has no scores on it",
        ),
    ],
)
def test_a_line_explains_why_there_is_no_significance_test(options, change, why, make):
    first, second = make("a"), make("b", **options)
    if change is not None:
        change(second)
    text = compare(first, second)
    assert "paired bootstrap" not in text
    (line,) = [line for line in text.splitlines() if "b against a on test: " in line]
    assert why in line


def test_scores_computed_in_different_ways_are_noted(make):
    other = make("b")
    (other / "metrics.jsonl").write_text((other / "metrics.jsonl").read_text().replace("tok:13a", "tok:intl"))
    assert "test BLEU was computed in different ways" in "".join(facts(make("a"), other)["notes"])


def test_translations_that_differ_only_in_unicode_normalization_do_not_differ(make):
    """One run writes accents as combining characters, and invisible marks."""
    decomposed = [unicodedata.normalize("NFD", line).replace(" ", " \u200e") for line in GOOD]
    found = facts(make("a"), make("b", decomposed))
    assert found["notes"] == []
    (tested,) = found["significance"]
    assert (tested["difference"], tested["p_value"]) == (0, 1)
    signatures = [tested["signature"], found["runs"][1]["scores"]["test"]["bleu_signature"]]
    assert all(each.endswith("|normalized:NFC, nothing invisible") for each in signatures)


# -- the picture -------------------------------------------------------------------------------------------------------


def curve(*points):
    return [{"step": step, "split": "validation", "loss": loss} | scores for step, loss, scores in points]


CURVES = {
    "_seed-0": curve((10, 3.0, {}), (20, 2.0, {"bleu": 20.0, "chrf": 40.0})),
    "$costs$": curve((10, 2.8, {"bleu": 10.0})),
    "nothing-yet": [RUN],
}


def test_the_picture_has_a_line_and_a_name_for_each_run(make, tmp_path):
    figure = comparison_figure(CURVES)
    loss, bleu, chrf = figure.axes
    assert [line.get_xydata().tolist() for line in loss.lines] == [[[10, 3.0], [20, 2.0]], [[10, 2.8]], []]
    assert [line.get_xydata().tolist() for line in bleu.lines] == [[[20, 20.0]], [[10, 10.0]], []]
    assert [len(line.get_xydata()) for line in chrf.lines] == [1, 0, 0]
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(CURVES)
    assert [line.get_color() for line in legend.get_lines()] == [line.get_color() for line in loss.lines]
    assert len(comparison_figure({"a": curve((1, 2.0, {})), "b": [RUN]}).axes) == 1  # no scores: the loss alone
    compare(make("a"), make("b"), "--out", tmp_path / "new" / "curves.png")
    assert imread(tmp_path / "new" / "curves.png").std() > 0.02  # not blank


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "at least two"),
        (["a", "b", "b/"], "the same run"),
        (["a", "none"], "none: no such folder"),
        (["a", "empty"], "empty is not the folder of a run"),
        (["a", "no-records"], "no-records/metrics.jsonl: no records yet"),
        (["a", "bad-recipe"], "bad-recipe: recipe.yaml: optimization"),
        (["a", "b", "--out", "picture.svg"], ".png"),
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
