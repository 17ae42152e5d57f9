"""Metrics: scores equal sacreBLEU's, and evaluation, cards and curves follow the table of metrics."""

import math
import operator
import os
import random
import sys
import unicodedata
from importlib.metadata import version
from typing import get_args

import numpy as np
import pytest
import sacrebleu
from conftest import quick_run, read_metrics, run_training
from huggingface_hub import file_download

from modeling_scratch import metrics
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.errors import UserError
from modeling_scratch.hub.card import build_card
from modeling_scratch.metrics import METRICS, Metric, Score, bleu_significance, grouped_by_source, score
from modeling_scratch.recipe.schema import EvaluationSection
from modeling_scratch.run.curves import curves_figure
from modeling_scratch.run.records import RunRecords
from modeling_scratch.training.evaluation import is_better
from modeling_scratch.training.translation_scores import TranslationScores

TRANSLATIONS = ["Der Hund sah die Katze.", "Ein kleines Haus heute.", "Sie kommen an.", "Heute regnet es viel."]
FIRST = ["Der Hund sieht die Katze.", "Ein kleines Haus, heute.", "Sie kommt an.", "Heute regnet es sehr viel."]
SECOND = ["Ein Hund sah die Katze.", "Ein Häuschen heute.", "Sie kommen an.", "Es regnet heute viel."]
SOURCES = ["The dog saw the cat.", "A small house today.", "They arrive.", "It rains a lot today."]
SEVERAL = [list(both) for both in zip(FIRST, SECOND, strict=True)]
BY_SACREBLEU = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf, "ter": sacrebleu.corpus_ter}


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", BY_SACREBLEU)
@pytest.mark.parametrize("final", [True, False])
def test_scores_equal_those_of_sacrebleu(key, final):
    one = score(SOURCES, TRANSLATIONS, FIRST, final, chosen="ter")
    several = score(SOURCES, TRANSLATIONS, SEVERAL, final, chosen="ter")
    assert one[key] == BY_SACREBLEU[key](TRANSLATIONS, [FIRST]).score
    assert several[key] == BY_SACREBLEU[key](TRANSLATIONS, [FIRST, SECOND]).score
    assert several[key] != one[key]


CHINESE = ["狗今天看见了那只很小的黑猫。", "今天下了很大的雨，我们没有出门。"]  # noqa: RUF001
JAPANESE = ["犬は今日小さな黒い猫を見ました。", "今日は大雨が降ったので、出かけませんでした。"]


@pytest.mark.parametrize(
    ("language", "references", "tokenize"),
    [("zh", CHINESE, "zh"), ("zh-Hant", CHINESE, "zh"), ("ja", JAPANESE, "char"), ("th", JAPANESE, "char")],
)
def test_languages_without_spaces_are_scored_by_characters(language, references, tokenize):
    translations = [text[:-3] + text[-2:] for text in references]
    found = score(["", ""], translations, references, language=language, also=["lowercased", "ter"])
    expected = sacrebleu.corpus_bleu(translations, [references], tokenize=tokenize).score
    assert found["bleu"] == found["lowercased"] == expected > 60
    assert f"tok:{tokenize}" in found["bleu_signature"]
    if language != "th":
        assert found["ter"] < 20


# Wu, Hakka and no language; Dzongkha, Shan and Pali in Thai letters; Okinawan; Korean, Javanese in Latin letters.
@pytest.mark.parametrize(
    ("language", "reference", "tokenize"),
    [
        ("wuu", "今朝天气邪气好，阿拉出去白相。", "zh"),  # noqa: RUF001
        ("hak", "今晡日天時盡好，𠊎等去外背尞。", "zh"),  # noqa: RUF001
        ("target", CHINESE[0], "zh"),
        ("dz", "ད་རིས་གནམ་ཤིས་ལེགས་ཤོམ་འདུག།", "char"),
        ("shn", "ဝၼ်းၼႆႉ ၾႃႉလီယူႇ ႁဝ်းမႃးႁဵၼ်းလိၵ်ႈ", "char"),
        ("pi", "นะโมตัสสะภะคะวะโต", "char"),
        ("ryu", "チューヤ イイ ワーチチデービル", "char"),
        ("ko", "오늘은 날씨가 참 좋습니다.", "13a"),
        ("jv", "Dina iki hawane apik banget.", "13a"),
        ("de", "Das Zeichen 漢 heißt Han.", "13a"),
    ],
)
def test_the_script_of_references_decides_how_other_languages_are_split(language, reference, tokenize):
    translation = reference[:-4] + reference[-3:]
    found = score([""], [translation], [reference], language=language)
    assert found["bleu"] == sacrebleu.corpus_bleu([translation], [[reference]], tokenize=tokenize).score > 40
    assert f"tok:{tokenize}|" in found["bleu_signature"]


def test_sentences_may_have_different_numbers_of_references():
    several = [SEVERAL[0], FIRST[1], *SEVERAL[2:]]
    expected = sacrebleu.corpus_bleu(TRANSLATIONS, [FIRST, [SECOND[0], None, *SECOND[2:]]])
    assert score(SOURCES, TRANSLATIONS, several)["bleu"] == expected.score


def test_signatures_name_the_tokenizer_the_case_and_the_bootstrap():
    scores = score(SOURCES, TRANSLATIONS, FIRST, also=["ter"])
    quick = score(SOURCES, TRANSLATIONS, SEVERAL, final=False)
    assert scores["bleu_signature"].startswith("nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert scores["ter_signature"].startswith("nrefs:1|bs:1000|seed:12345|case:lc|tok:tercom|")
    assert quick["bleu_signature"].startswith("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@pytest.mark.parametrize(
    ("sources", "references", "message"),
    [
        (SOURCES[:3], FIRST, "3 sources"),
        (SOURCES, FIRST[:2], "2 references"),
        (SOURCES, [*SEVERAL[:2], [], "a"], "sentence 2"),
    ],
)
def test_different_numbers_of_texts_are_refused(sources, references, message):
    with pytest.raises(ValueError, match=message):
        score(sources, TRANSLATIONS, references)


# Texts that NFC changes: Hindi and Bangla letters with a nukta, Arabic and Hebrew vowels in the order of typing.
CHANGED = [
    "वह घर के पीछे प\u095dता है",
    "बा\u09dcि ग\u09dcि\u09dfे",
    "ك\u064f\u0651ل\u0651\u064e ي\u064eو\u0652م",
    "\u05d1\u05bc\u05b0\u05e8\u05b5\u05d0\u05e9\u05c1\u05b4\u05d9\u05ea \u05d1\u05b8\u05bc\u05e8\u05b8\u05d0",
]


def test_canonically_equivalent_texts_and_invisible_characters_score_the_same():
    tokenizer = train_tokenizer(iter([CHANGED]), 400)
    written = tokenizer.batch_decode(tokenizer(CHANGED).input_ids, skip_special_tokens=True)
    assert not set(written) & set(CHANGED)
    assert [unicodedata.normalize("NFD", text) for text in written] == [
        unicodedata.normalize("NFD", text) for text in CHANGED
    ]
    for translations in (written, CHANGED, [text.replace(" ", "\u200b \u200f") for text in written]):
        scores = score(CHANGED, translations, CHANGED, also=["ter", "lowercased", "tokenized"], language="hi")
        assert [scores[key] for key in ("chrf", "ter", "tokenized")] == [pytest.approx(100), 0, pytest.approx(100)]
        assert scores["bleu"] == scores["lowercased"] == pytest.approx(100)
    several = [[text, "?"] for text in CHANGED]
    assert TranslationScores().compute(predictions=written, references=several)["bleu"] == pytest.approx(100)


@pytest.mark.parametrize("side", ["translation", "reference", None])
def test_the_signature_records_whether_texts_were_normalized(side):
    plain = score(SOURCES, FIRST, FIRST)
    changed = [*FIRST[:3], unicodedata.normalize("NFD", "Heute regnet es f\u00fcr uns.")] if side else FIRST
    found = score(SOURCES, changed if side == "translation" else FIRST, changed if side == "reference" else FIRST)
    end = "|normalized:NFC, nothing invisible" if side else ""
    for key in ("bleu", "chrf"):
        assert found[f"{key}_signature"] == plain[f"{key}_signature"] + end


def test_white_space_that_invisible_characters_surround_is_no_text():
    outputs, references = ["a b", "a\u00a0b"], ["\u200e a b \ufeff", "a\u00a0b"]
    assert score(["", ""], outputs, references, metrics=["exact_match"])["exact_match"] == 100


def test_white_space_can_be_reduced_to_single_spaces():
    references = ["R  O  S  O", "V\tE\u00a0M\u3000O", "F \u200b U"]
    names, outputs = ["wer", "exact_match", "cer", "token_error_rate"], ["R O S O", "V E M O", "F U"]
    found = score(["", "", ""], outputs, references, metrics=names, single_spaces=True)
    assert [found[name] for name in names] == [0, 100, 0, 0]
    assert found["wer_signature"].endswith("|white space:single spaces")
    assert (
        score([""], ["a b"], ["a b"], metrics=names, single_spaces=True)["wer_signature"]
        == "different from the reference"
    )
    assert score([""], ["a b"], ["a  b"], metrics=names)["wer"] == 100


def test_a_source_with_several_references_is_one_item():
    sources = ["tomato", "the", "either", "tomato", "the", "either", "the"]
    references = ["T AH", "DH AH", "IY", "T AA", "DH IY", "IY", "DH IY"]
    assert grouped_by_source(sources, references) == (
        [0, 1, 2, 5],
        [["T AH", "T AA"], ["DH AH", "DH IY"], ["IY"], ["IY"]],
    )


def test_significance_groups_references_as_the_scores_do():
    sources = ["a", "b", "a", "c"]
    scored = [
        score(SOURCES[:3], texts[:2] + texts[3:], [[FIRST[0], FIRST[2]], FIRST[1], FIRST[3]])
        for texts in (TRANSLATIONS, SECOND)
    ]
    recorded = [scores["bleu"] for scores in scored]
    difference, _, signature = bleu_significance(TRANSLATIONS, SECOND, FIRST, "de", recorded, sources)
    assert difference == pytest.approx(recorded[1] - recorded[0])
    assert signature == scored[0]["bleu_signature"]
    with pytest.raises(UserError, match="the test set has changed"):
        bleu_significance(TRANSLATIONS, SECOND, FIRST, "de", recorded)


# -- intervals and time ------------------------------------------------------------------------------------------------


def test_the_interval_is_that_of_a_bootstrap_over_sentences():
    """TER's, computed again with numpy."""
    scores = score(SOURCES, TRANSLATIONS, FIRST, also=["ter"])
    edits, words = np.array([1, 1, 1, 1]), np.array([5, 4, 3, 5])
    assert scores["ter"] == pytest.approx(100 * edits.sum() / words.sum())
    drawn = np.random.default_rng(12345).choice(4, size=(1000, 4))
    resampled = np.sort(100 * edits[drawn].sum(1) / words[drawn].sum(1))
    assert scores["ter_interval"] == pytest.approx((resampled[-26] - resampled[25]) / 2, abs=1e-4)
    assert score(SOURCES, TRANSLATIONS, FIRST, also=["ter"]) == scores


def test_translations_that_score_0_in_some_resamples_have_an_interval():
    """sacreBLEU's corpus_score fails for them."""
    scores = score(SOURCES, [TRANSLATIONS[0], "a", "b", "c"], FIRST)
    assert 0 < scores["bleu"] < scores["bleu_interval"]
    assert score(SOURCES, ["a"] * 4, FIRST)["bleu_interval"] == 0


def test_one_sentence_or_too_many_have_no_interval(monkeypatch):
    assert "bleu_interval" not in score(SOURCES[:1], TRANSLATIONS[:1], FIRST[:1])
    monkeypatch.setattr(metrics, "MOST_RESAMPLED", 3)
    assert "bleu_interval" not in score(SOURCES, TRANSLATIONS, FIRST)
    assert "bleu_interval" in score(SOURCES[:3], TRANSLATIONS[:3], FIRST[:3])


def test_scores_on_request_follow_the_protocols_of_papers():
    scores = score(SOURCES, TRANSLATIONS, FIRST, also=["lowercased", "tokenized", "bleu_of_tokens"], language="de")
    assert scores["lowercased"] == sacrebleu.corpus_bleu(TRANSLATIONS, [FIRST], lowercase=True).score
    ours = ["der hund sah die katze .", "ein kleines haus heute .", "sie kommen an .", "heute regnet es viel ."]
    theirs = [
        "der hund sieht die katze .",
        "ein kleines haus , heute .",
        "sie kommt an .",
        "heute regnet es sehr viel .",
    ]
    assert scores["tokenized"] == sacrebleu.corpus_bleu(ours, [theirs], tokenize="none", force=True).score
    assert scores["tokenized_signature"].endswith(f"sacremoses-{version('sacremoses')}.de")
    assert scores["tokenized_interval"] > 0
    ours, theirs = ([" ".join(text.split()) for text in texts] for texts in (TRANSLATIONS, FIRST))
    assert scores["bleu_of_tokens"] == sacrebleu.corpus_bleu(ours, [theirs], tokenize="none", force=True).score
    assert scores["bleu_of_tokens"] != scores["bleu"]


def textbook_edits(first, second) -> int:
    """Wagner and Fischer 1974."""
    row = list(range(len(second) + 1))
    for i, left in enumerate(first, 1):
        last, row[0] = row[0], i
        for j, right in enumerate(second, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (left != right))
    return row[-1]


def test_scores_of_sequences_that_are_no_sentences():
    """Against formulas written anew; the interval of a share against that of a binomial distribution."""
    draw = random.Random(0)
    references = [" ".join(draw.choices("abcde", k=draw.randint(1, 6))) for _ in range(400)]
    outputs = [reference if draw.random() < 0.7 else " ".join(draw.choices("abcde", k=3)) for reference in references]
    outputs[:2] = ["", references[1]]
    names = ["exact_match", "wer", "token_error_rate", "cer", "token_f1"]
    scores = score(references, outputs, references, metrics=names)
    assert [key for key in METRICS if key in scores] == names
    right = sum(map(operator.eq, outputs, references)) / 400
    assert scores["exact_match"] == pytest.approx(100 * right)
    assert scores["wer"] == pytest.approx(100 - 100 * right)
    for name, split in (("token_error_rate", str.split), ("cer", list)):
        pairs = [(split(output), split(reference)) for output, reference in zip(outputs, references, strict=True)]
        edits, length = sum(textbook_edits(*pair) for pair in pairs), sum(len(reference) for _, reference in pairs)
        assert scores[name] == pytest.approx(100 * edits / length)
    assert scores["exact_match_interval"] == pytest.approx(196 * math.sqrt(right * (1 - right) / 400), rel=0.15)
    assert "bs:1000|seed:12345" in scores["cer_signature"]


@pytest.mark.parametrize(
    ("output", "references", "expected"),
    [
        ("a b", ["b a"], 100),
        ("a b c", ["a"], 50),
        ("a a", ["a"], 2 / 3 * 100),
        ("a", ["b", "a c"], 2 / 3 * 100),
        ("", [""], 100),
        ("", ["a"], 0),
    ],
)
def test_f1_of_tokens(output, references, expected):
    assert score([""], [output], [references], metrics=["token_f1"])["token_f1"] == pytest.approx(expected)


@pytest.mark.parametrize(("output", "expected"), [("", 0), ("a", 100)])
def test_edits_of_empty_references(output, expected):
    assert score([""], [output], [""], metrics=["cer"])["cer"] == expected
    with pytest.raises(ValueError, match="nothing"):
        score([], [], [])


def test_of_several_references_the_nearest_counts():
    scores = score([""], ["a b c"], [["a x y z", "a b d"]], metrics=["token_error_rate", "wer"])
    assert scores["token_error_rate"] == pytest.approx(100 / 3)
    assert scores["wer"] == 100


def test_the_first_of_several_outputs_that_differ_may_be_right():
    """Counted by hand; the interval is that of the share that is right."""
    outputs = [["a", "b", "c", "d"], ["b", "b", "b", "a"], ["b", "c", "d", "a"], ["b"]]
    scores = score([""] * 4, outputs, ["a", "a", "a", ["c", "a"]], metrics=["exact_match", "top_1", "top_3", "top_5"])
    assert [scores[key] for key in ("exact_match", "top_1", "top_3", "top_5")] == [25, 25, 50, 75]
    alone = score([""] * 4, ["a", "a", "b", "b"], ["a"] * 4, metrics=["exact_match"])
    assert scores["top_3_interval"] == alone["exact_match_interval"] > 0
    assert scores["top_3_signature"] != scores["top_5_signature"]


# The order of atoms and of molecules, Kekulé structures, explicit hydrogens, and spaces between tokens.
SAME = [("OCC", "CCO"), ("CC.O", "O.CC"), ("C1=CC=CC=C1", "c1ccccc1"), ("[CH4]", "C"), ("C ( O ) C", "CCO")]
SAME += [("Br[C@](F)(Cl)I", "Br[C@@](F)(I)Cl")]
# Chirality, charge, an invalid output, one without atoms, an invalid reference.
OTHER = [("Br[C@](F)(Cl)I", "Br[C@@](F)(Cl)I"), ("CC[O-]", "CCO"), ("C1CC", "CCC"), ("", "C"), ("C(", "C(")]


@pytest.mark.parametrize(("output", "reference"), SAME + OTHER)
def test_canonical_smiles_are_compared(output, reference):
    pytest.importorskip("rdkit")
    is_right = (output, reference) in SAME
    metrics = ["exact_match", "wer", "top_1", "top_3"]
    scores = score([""], [[output, "N"]], [reference], metrics=metrics, canonical="smiles")
    assert [scores[key] for key in metrics] == [100 * right for right in (is_right, not is_right, is_right, is_right)]
    assert "canonical:RDKit-" in scores["top_3_signature"]
    assert score([""], [output], [reference], metrics=["exact_match"])["exact_match"] == 100 * (output == reference)


def test_the_rank_of_smiles_counts_molecules_once_and_only_valid_ones():
    """
    As in compare.pl of Tetko et al. 2020, here with plain loops. An exact match is of the best output, and
    edits are of the texts themselves.
    """
    chemistry = pytest.importorskip("rdkit.Chem")
    draw = random.Random(0)
    molecules = ["CCO", "OCC", "C(C)O", "CC.O", "O.CC", "CCN", "NCC", "c1ccccc1", "C1=CC=CC=C1", "C(", "c1ccc", "CF"]
    outputs = [draw.choices(molecules, k=10) for _ in range(200)]
    references = draw.choices([molecule for molecule in molecules if molecule not in ("C(", "c1ccc")], k=200)
    keys = ["exact_match", "top_1", "top_3", "top_5", "invalid_smiles", "cer"]
    scores = score(references, outputs, references, metrics=keys, canonical="smiles")
    ranks = []
    for row, reference in zip(outputs, references, strict=True):
        read = [chemistry.MolFromSmiles(text) for text in row]
        seen = []
        for molecule in read:
            text = molecule and chemistry.MolToSmiles(molecule)
            if text and text not in seen:
                seen.append(text)
        expected = chemistry.CanonSmiles(reference)
        ranks.append((seen.index(expected) if expected in seen else math.inf, read[0] is None))
    for top in (1, 3, 5):
        assert scores[f"top_{top}"] == pytest.approx(sum(rank < top for rank, _ in ranks) / 2)
    right = sum(rank == 0 and not is_invalid for rank, is_invalid in ranks)
    assert scores["top_1"] > scores["exact_match"] == pytest.approx(right / 2)
    assert scores["invalid_smiles"] == pytest.approx(sum(is_invalid for _, is_invalid in ranks) / 2)
    assert scores["cer"] == score(references, [row[0] for row in outputs], references, metrics=["cer"])["cer"]


def test_references_that_are_not_smiles_are_counted(caplog):
    pytest.importorskip("rdkit")
    scores = score(["", ""], ["CO", "C("], ["OC", "C("], metrics=["exact_match"], canonical="smiles")
    assert scores["exact_match"] == 50
    assert "exact_match: 1 of 2 references are not valid" in caplog.text


@pytest.mark.parametrize("key", ["canonical=smiles", "also=[invalid_smiles]"])
def test_without_rdkit_a_run_says_at_its_start_what_to_install(key, monkeypatch, tmp_path, capsys):
    metrics._smiles.cache_clear()
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(SystemExit) as stopped:
        run_training(f"output_dir={tmp_path / 'run'}", "evaluation.metrics=[exact_match]", f"evaluation.{key}")
    assert stopped.value.code == 2
    assert "pip install 'modeling-scratch[smiles]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# Stands for the command of unbabel-comet: the same options and results. Its score is the share of a translation's words
# that its reference has.
COMET_SCORE = """#!/usr/bin/env python3
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--quiet", action="store_true")
for name in ("--sources", "--translations", "--references", "--model", "--gpus", "--to_json"):
    parser.add_argument(name, required=True)
given = parser.parse_args()
files = (given.sources, given.translations, given.references)
rows = [dict(zip(("src", "mt", "ref"), row)) for row in zip(*(open(file).read().splitlines() for file in files))]
if os.environ["HF_HUB_OFFLINE"] != "1" or open(given.model).read() != "weights":
    sys.exit("it would download")
if any(row["src"] != f"source {number}" for number, row in enumerate(rows)):
    sys.exit("other sources\\nnot those")
for row in rows:
    words = row["mt"].split()
    row["COMET"] = sum(word in row["ref"].split() for word in words) / len(words)
json.dump({given.translations: rows}, open(given.to_json, "w"))
"""


@pytest.fixture
def comet(tmp_path, monkeypatch):
    """The command comet-score, and its model in a cache as the Hub's client makes it."""
    command = tmp_path / "bin" / "comet-score"
    command.parent.mkdir()
    command.write_text(COMET_SCORE)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    monkeypatch.setattr(file_download.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, files in metrics._COMET_FILES.items():
        for file in files:
            path = tmp_path / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "0" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("weights")
        (path := tmp_path / "hub" / f"models--{name.replace('/', '--')}" / "refs" / "main").parent.mkdir()
        path.write_text("0")
    return tmp_path


def test_comet_is_the_mean_over_sentences_of_what_its_command_writes(comet):
    sources, translations = ["source 0", "source\n1"], ["a b\nc d", "e f"]
    references = [["a b c x", "a b c d"], ["y z"]]
    scores = score(sources, translations, references, metrics=["comet"])
    assert scores["comet"] == pytest.approx(100 * (3 / 4 + 0) / 2)
    assert scores["comet_signature"].startswith("model:Unbabel/wmt22-comet-da|references:first|bs:")
    with pytest.raises(UserError, match=r"^comet: comet-score failed: not those$"):
        score(["no source"], ["a"], ["a"], metrics=["comet"])


@pytest.mark.parametrize(
    ("lacking", "advice"),
    [
        ("bin/comet-score", "uv tool install --python 3.11 unbabel-comet"),
        ("hub/models--Unbabel--wmt22-comet-da", "hf download Unbabel/wmt22-comet-da"),
        ("hub/models--xlm-roberta-large/snapshots/0/tokenizer.json", "hf download xlm-roberta-large config.json"),
    ],
)
def test_a_run_without_comet_says_at_its_start_what_to_install_or_fetch(lacking, advice, comet, tmp_path, capsys):
    (comet / lacking).rename(comet / "elsewhere")
    with pytest.raises(SystemExit) as stopped:
        run_training(f"output_dir={tmp_path / 'run'}", "evaluation.also=[comet]")
    assert stopped.value.code == 2
    assert advice in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "computed"),
    [
        ({}, False),
        ({"metrics": ["tokenized"], "final": False}, True),
        ({"also": ["tokenized"]}, True),
        ({"also": ["tokenized"], "final": False}, False),
        ({"chosen": "tokenized", "final": False}, True),
    ],
)
def test_scores_on_request_are_computed_for_the_final_model_or_if_they_choose_it(options, computed):
    scores = score(SOURCES, TRANSLATIONS, FIRST, **options)
    assert ("tokenized" in scores) is computed
    assert ("bleu_interval" in scores) is options.get("final", True)


# -- the table of metrics ----------------------------------------------------------------------------------------------


def test_a_recipe_may_choose_the_best_by_any_metric():
    of_translations = (key for key, metric in METRICS.items() if metric.compute)
    assert get_args(EvaluationSection.model_fields["metric"].annotation) == ("loss", *of_translations)


@pytest.mark.parametrize(("metric", "better"), [("loss", 1.0), ("ter", 1.0), ("bleu", 3.0), ("chrf", 3.0)])
def test_the_direction_of_a_metric_decides_which_score_is_better(metric, better):
    worse = 4.0 - better
    best = {"loss": 2.0, metric: 2.0}
    assert is_better({"loss": 1.0, metric: better}, metric, best)
    assert is_better({"loss": 1.0, metric: worse}, metric, None)
    assert not is_better({"loss": 1.0, metric: worse}, metric, best)
    assert not is_better({"loss": 1.0, metric: 2.0}, metric, best)
    assert not is_better({"loss": 1.0, metric: math.nan}, metric, best)


@pytest.mark.parametrize("metric", ["ter", "bleu", "chrf"])
def test_if_the_score_is_the_lowest_possible_the_loss_decides(metric):
    nothing = {"loss": 2.0, metric: 0.0}
    assert is_better({"loss": 1.9, metric: 0.0}, metric, nothing) is (metric != "ter")  # 0 is the best TER
    assert not is_better({"loss": 2.0, metric: 0.0}, metric, nothing)
    assert is_better({"loss": 3.0, metric: 0.1}, metric, nothing) is (metric != "ter")
    older = {"loss": None, metric: 0.0}  # as in older checkpoints
    assert is_better({"loss": 9.0, metric: 0.0}, metric, older) is (metric != "ter")
    worst = {"loss": 2.0, "wer": 100.0}
    assert is_better({"loss": 1.9, "wer": 100.0}, "wer", worst)
    assert not is_better({"loss": 2.1, "wer": 100.0}, "wer", worst)
    by_loss = {"chosen_by": "loss"}
    assert is_better({"loss": 9.0, metric: 0.0} | by_loss, metric, older | by_loss)


def right_length(sources, translations, references, resamples) -> Score:
    found = sum(len(text) in map(len, several) for text, several in zip(translations, references, strict=True))
    return Score(100 * found / len(translations), "counted", interval=12.5 if resamples else None)


NEW = Metric("Length", "length", "sentences of the right length, of 100", True, (-50, 100), right_length)


@pytest.fixture(scope="module")
def run_by_ter(tmp_path_factory):
    """A run with an additional metric in the table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METRICS, "length", NEW)
        options = ["optimization.max_steps=4", "evaluation.every=1", "evaluation.metric=ter"]
        return quick_run(tmp_path_factory.mktemp("runs") / "length", *options)


@pytest.fixture
def run_with_a_new_metric(run_by_ter, monkeypatch):
    monkeypatch.setitem(METRICS, "length", NEW)
    return run_by_ter


def test_a_new_metric_is_evaluated_and_shown_in_the_card_and_the_curves(run_with_a_new_metric):
    for record in read_metrics(run_with_a_new_metric, "validation"):
        assert {"bleu", "chrf", "ter", "length"} <= record.keys()
        assert not any(key.endswith(("_interval", "_signature")) for key in record)
    (test,) = read_metrics(run_with_a_new_metric, "test")
    assert (test["length_signature"], test["length_interval"]) == ("counted|lines:split", 12.5)
    card = build_card(run_with_a_new_metric, "ada/tiny", RunRecords(run_with_a_new_metric))
    assert f"| {test['length']:.2f} ± 12.50 | {test['sentences']} |" in card.text
    assert "Length: sentences of the right length, of 100; higher is better." in card.text
    assert card.data.metrics[-1] == "length"
    assert card.data.eval_results[-1].metric_name == "Length"
    records = read_metrics(run_with_a_new_metric)
    panels = {axis.get_title(loc="left"): axis for axis in curves_figure(records).axes}
    (line,) = panels["Length on validation"].lines
    assert line.get_ydata().tolist() == [record["length"] for record in records if record["split"] == "validation"]


def test_the_best_of_an_unfinished_run_by_ter_is_its_lowest(run_by_ter, tmp_path):
    lines = (run_by_ter / "metrics.jsonl").read_text().splitlines(keepends=True)
    for name in ("recipe.yaml", "config.json"):
        (tmp_path / name).write_bytes((run_by_ter / name).read_bytes())
    (tmp_path / "metrics.jsonl").write_text("".join(line for line in lines if '"final"' not in line))
    (best,) = RunRecords(tmp_path).scored
    assert best["ter"] == min(record["ter"] for record in read_metrics(tmp_path, "validation"))


def test_the_evaluate_metric_gives_the_same_scores():
    mine = TranslationScores(keep_in_memory=True)
    assert mine.compute(predictions=TRANSLATIONS, references=FIRST) == score(SOURCES, TRANSLATIONS, FIRST)
    assert mine.compute(predictions=TRANSLATIONS, references=SEVERAL, final=False) == score(
        SOURCES, TRANSLATIONS, SEVERAL, final=False
    )
