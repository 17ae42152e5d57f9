"""benchmarks/frontier.py compares programs that translate alike, and draws what it measured."""

import json
import random
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, run_command
from matplotlib.figure import Figure
from sacrebleu import corpus_bleu
from translators import CORPUS, LEARNT, by_hand, make_folder, sure_of

sys.path.insert(0, str(ROOT / "benchmarks"))
import figures
import frontier
import marian_weights

from modeling_scratch.errors import UserError
from modeling_scratch.loading import load_tokenizers, load_translator

ctranslate2 = pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model that Marian can express, beside sentences whose translations rounding cannot change, and references."""
    folder = make_folder(tmp_path_factory.mktemp("models") / "model", norm_position="post", final_norm=False)
    pairs = LEARNT[:40]
    sources = [pair["en"] for pair in pairs]
    sure = [all(each) for each in zip(*(sure_of(folder, sources, num_beams=beams) for beams in (1, 2)), strict=True)]
    for side in ("en", "de"):
        lines = [pair[side] for pair, is_sure in zip(pairs, sure, strict=True) if is_sure]
        folder.with_suffix(f".{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def measured(model: Path, folder: Path, *options: str, **environment: str) -> tuple[dict, str]:
    """The figures and the standard output of a run with one round."""
    files = [str(model.with_suffix(suffix)) for suffix in (".en", ".de")]
    figures_file = folder / "figures.json"
    options = [*files, f"tiny={model}", "--json", str(figures_file), "--beams", "1", "2", "--rounds", "1", *options]
    done = run_command("benchmarks/frontier.py", *options, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(figures_file.read_text()), done.stdout


@cache
def expected(model: Path, beams: int) -> tuple[list[str], float]:
    """The translations of the sources, and their BLEU."""
    sources, references = (frontier.read(str(model.with_suffix(suffix))) for suffix in (".en", ".de"))
    translations = by_hand(model, sources, num_beams=beams)
    return translations, corpus_bleu(translations, [references]).score


def test_programs_translate_as_generate_does(model, tmp_path):
    found, output = measured(model, tmp_path)
    programs = [(point["program"], point["kind"]) for point in found["points"] if point["beams"] == 1]
    assert programs == [
        (frontier.PYTORCH, "float32"),
        (frontier.CTRANSLATE2, "float32"),
        (frontier.OWN_CALLS, "float32"),
        (frontier.CTRANSLATE2, "int8"),
        (frontier.OWN_CALLS, "int8"),
    ]
    for point in found["points"]:
        assert len(point["seconds"]) == 1
        assert point["seconds"][0] > 0
        if point["kind"] == "float32":
            assert point["same"] == 1
            assert point["bleu"] == pytest.approx(expected(model, point["beams"])[1])
    assert found["points"][0]["bytes"] == (model / "model.safetensors").stat().st_size
    assert "\n".join(frontier.table(found)) in output
    figures.frontier(tmp_path / "plot.png", found["points"], [1.0 + point["beams"] for point in found["points"]])
    assert (tmp_path / "plot.png").is_file()


@pytest.mark.slow  # starts the whole command eight times
def test_whole_commands_translate_as_generate_does(model, tmp_path):
    found, output = measured(model, tmp_path, "--commit", str(ROOT), XDG_CACHE_HOME=str(tmp_path))
    commands = [point for point in found["points"] if "whole" in point]
    assert [point["program"] for point in commands] == [frontier.COMMAND] * 2 + [found["earlier"]] * 2
    for point in commands:
        assert point["bleu"] == pytest.approx(expected(model, point["beams"])[1])
        whole, line = point["whole"][0], point["line"][0]
        assert point["seconds"][0] == pytest.approx((whole - line) / frontier.COPIES)
    assert output.count(f"\n| {frontier.COMMAND}") == 4


def test_marianmt_translates_as_generate_does(model):
    translate, sources = frontier.marianmt(str(model)), frontier.read(str(model.with_suffix(".en")))
    for beams in (1, 2):
        assert translate(sources, beams) == expected(model, beams)[0]


def test_marian_gets_and_gives_the_words_of_its_tokenizer(model, tmp_path, monkeypatch):
    made = []

    class Echo:
        def __init__(self, **options):
            made.append(options["beam_size"])

        def translate(self, rows: list[str]) -> list[str]:
            assert not any(token in row for row in rows for token in ("<s>", "</s>"))
            return rows

    monkeypatch.setitem(sys.modules, "pymarian", SimpleNamespace(Translator=Echo))
    (tmp_path / "tokenizer").symlink_to(model)
    translate, sources = frontier.marian("model.npz", str(tmp_path)), [pair["en"] for pair in CORPUS]
    assert [translate(sources, beams) for beams in (1, 5, 1)] == [sources] * 3
    assert made == [1, 5]


def test_best_points_are_those_that_no_other_beats():
    draw = random.Random(0)
    points = [(draw.randrange(30), draw.randrange(30)) for _ in range(200)]
    for count in (1, 7, 200):
        some = points[:count]
        beaten = {
            point
            for point in some
            for other in some
            if other != point and other[0] >= point[0] and other[1] >= point[1]
        }
        assert figures.best_points(some) == sorted(set(some) - beaten)


def test_names_hide_neither_points_nor_one_another():
    draw = random.Random(0)
    axis = Figure(figsize=(9, 6.5), dpi=100).subplots()
    lines = {}
    for number in range(12):
        x, y = draw.uniform(200, 2000), draw.uniform(36, 41)
        lines[f"student {number % 6}", "", ""] = [(x, y), (x / 3, y + 0.5)]
        axis.plot(*zip((x, y), (x / 3, y + 0.5), strict=True))
    names = figures.write_names(axis, lines)
    assert {name.get_text() for name in names} == {model for model, *_ in lines}
    axis.figure.dpi = 200  # as a file is written
    boxes = [name.get_window_extent() for name in names]
    assert not any(box.count_overlaps(boxes[:number]) for number, box in enumerate(boxes))
    points = axis.transData.transform([end for ends in lines.values() for end in ends])
    assert not any(box.contains(*point) for box in boxes for point in points)


def test_marian_starts_training_from_the_same_weights(model, tmp_path):
    """CTranslate2, which reads Marian's files, gives translations the same probabilities."""
    with pytest.raises(UserError, match="encoder_attention_heads and decoder_attention_heads differ"):
        marian_weights.options(load_translator(str(model)))
    same = {"norm_position": "post", "final_norm": False, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
    folder = str(make_folder(tmp_path / "folder", **same))
    translator, (tokenizer, _) = load_translator(folder).eval(), load_tokenizers(folder)
    with torch.no_grad():  # as Marian has it
        translator.get_input_embeddings().weight[translator.config.decoder_start_token_id] = 0
    special = [tokenizer.eos_token, tokenizer.unk_token]
    words = [*special, *(word for word in tokenizer.get_vocab() if word not in special)]
    marian_weights.write_marian(translator, tokenizer.convert_tokens_to_ids(words), tmp_path / "marian.npz")
    vocabulary = tmp_path / "vocabulary.yml"
    rows = (f"{json.dumps(word, ensure_ascii=False)}: {number}\n" for number, word in enumerate(words))
    vocabulary.write_text("".join(rows), encoding="utf-8")
    converter = ctranslate2.converters.MarianConverter(str(tmp_path / "marian.npz"), [str(vocabulary)] * 2)
    read = ctranslate2.Translator(converter.convert(str(tmp_path / "model")), device="cpu")
    for pair in LEARNT[:4]:
        source, target = (tokenizer(pair[side], return_tensors="pt").input_ids for side in ("en", "de"))
        logits = translator(input_ids=source, labels=target).logits.log_softmax(-1)
        expected = logits.gather(-1, target[..., None]).flatten()
        tokens = [tokenizer.convert_ids_to_tokens(ids[0])[:-1] for ids in (source, target)]  # it adds the end
        (found,) = read.score_batch(*([each] for each in tokens))
        assert found.log_probs == pytest.approx(expected.tolist(), abs=1e-3)
