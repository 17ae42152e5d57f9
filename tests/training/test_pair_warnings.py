"""A run warns of training pairs that are copies, in another script, or lose placeholders, and of no others."""

import gzip
import logging
import random

import pytest
from conftest import SMALL_RUN, few_sentences, run_training

from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.training.preparation import warn_about_pairs

PAIRS = [(pair["en"], pair["de"]) for pair in make_corpus(3000, 1, 1, seed=2)["train"]]
LONG = [(source, target) for source, target in PAIRS if len(source) >= 20]
ENGLISH = ("en", "de")
RUSSIAN = "Собака спит в саду весь день."
JAPANESE = [(f"File {{n}} not found %s: {number}", f"%sが見つかりません{{n}}。{number}") for number in range(200)]


def mixed(faulty, share: float, among=PAIRS) -> list[tuple[str, str]]:
    """Pairs of which this share are faulty, in random order."""
    count = round(share * 1000)
    pairs = [*(faulty[place % len(faulty)] for place in range(count)), *among[: 1000 - count]]
    return random.Random(0).sample(pairs, len(pairs))


def warnings(pairs, languages, caplog) -> list[str]:
    caplog.clear()
    warn_about_pairs(pairs, languages)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


FAULTS = {
    "a copy of the source": [(source, source) for source, _ in LONG[:50]],
    "no letter in the script": [(source, RUSSIAN) for source, _ in LONG[:50]],
    "with placeholders or addresses, the target lacks some": [
        (f"{{n}} of %s: {source}", target) for source, target in PAIRS
    ],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tenth_of_the_pairs_or_more_is_warned_about_in_one_line(fault, caplog):
    (line,) = warnings(mixed(FAULTS[fault], 0.15), ENGLISH, caplog)
    assert fault in line
    share = "100%" if "placeholders" in fault else "15%"  # of the sources with placeholders
    assert f"in {share} " in line
    assert line.endswith("`scratch corpus report` shows such pairs")


@pytest.mark.parametrize(("fault", "share"), zip(FAULTS, (0.08, 0.08, 0.005), strict=True))
def test_fewer_pairs_are_not_warned_about(fault, share, caplog):
    assert warnings(mixed(FAULTS[fault], share), ENGLISH, caplog) == []


@pytest.mark.parametrize(
    ("pairs", "languages"),
    [
        (PAIRS, ENGLISH),
        ([("Zürich", "Zürich"), ("PDF", "PDF"), *PAIRS[:2]], ENGLISH),  # names
        ([(source, source) for source, _ in LONG], ("en-US", "en-GB")),
        ([(source, source) for source, _ in LONG], ("nb", "no")),
        (JAPANESE, ("en", "ja")),  # placeholders beside letters without spaces
        ([(f"%s and %s are {number} words", f"%2$s und %1$s sind {number} Worte") for number in range(100)], ENGLISH),
        ([(f"Written by Mr. {name} Example", f"{name} Example 氏が作成") for name in "ABCD"], ("en", "ja")),
        ([], ENGLISH),
    ],
)
def test_good_pairs_are_not_warned_about(pairs, languages, caplog):
    assert warnings(pairs, languages, caplog) == []


def train_on(pairs, folder, *overrides: str) -> None:
    for side, texts in zip(ENGLISH, zip(*pairs, strict=True), strict=True):
        with gzip.open(folder / f"train.{side}.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in texts)
    names = ["optimization.max_steps=1", "evaluation.every=1", "checkpoints.every=1", f"output_dir={folder / 'run'}"]
    run_training(*SMALL_RUN, *few_sentences(), *names, f"data.train_files={folder / 'train'}", *overrides)


def test_a_run_warns_before_it_trains(tmp_path, capsys):
    train_on(mixed(FAULTS["a copy of the source"], 0.3), tmp_path)
    log = capsys.readouterr().err
    assert "\nwarning: data: in 30% of the training pairs, the target is a copy" in log.partition("\nstep 1 ")[0]


def test_pairs_without_languages_are_never_warned_about(tmp_path, capsys):
    files = [f"data.train_files=[{tmp_path / 'train.en.gz'},{tmp_path / 'train.de.gz'}]", "data.validation_files=null"]
    without = ["data.source_language=null", "data.target_language=null", "data.test_files=null", *files]
    train_on(mixed(FAULTS["a copy of the source"], 0.3), tmp_path, *without)
    assert "scratch corpus report" not in capsys.readouterr().err
