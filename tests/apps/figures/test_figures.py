"""`scratch figures`: attention maps, positions and the architecture agree with generate(), formulas and modules."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.image import imread
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from modeling_scratch.apps.figures import architecture as diagram
from modeling_scratch.apps.figures import attention_maps as attention
from modeling_scratch.apps.figures import positions
from modeling_scratch.commands.figures import app
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.loading import save_tokenizers
from modeling_scratch.run import curves as saving

ENGLISH = ["The old man gives the child a book.", "It costs $5 or $6."]
GERMAN = ["Der alte Mann gibt dem Kind ein Buch.", "Grüße an die Mäuse."]
SENTENCE = "The old child costs $5 or $6."


@pytest.fixture(scope="module")
def tokenizers():
    return train_tokenizer(iter([ENGLISH * 3]), 320), train_tokenizer(iter([GERMAN * 3]), 300)


@pytest.fixture(params=["shared", "separate"])
def translator(request, make_model, tokenizers):
    """A model with one vocabulary or two, and its tokenizers."""
    source, target = tokenizers if request.param == "separate" else (tokenizers[0], tokenizers[0])
    sizes = {"vocab_size": len(source)}
    if request.param == "separate":
        sizes |= {"decoder_vocab_size": len(target), "share_encoder_decoder_embeddings": False}
    model = make_model(**sizes)
    model.generation_config.max_new_tokens = 8
    return model, source, target


separate = pytest.mark.parametrize("translator", ["separate"], indirect=True)


@pytest.fixture
def folder(translator, tmp_path):
    model, source, target = translator
    model.save_pretrained(tmp_path / "model")
    save_tokenizers(source, target, tmp_path / "model")
    return tmp_path / "model"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def is_a_picture(path):
    """Whether a file is a PNG of sensible size that is not blank."""
    pixels = imread(path)
    return 400 <= pixels.shape[1] <= 1600 and 300 <= pixels.shape[0] <= 4000 and pixels[..., :3].std() > 0.02


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentence", ["The old man gives.", "Grüße,  Ärger: 5 €!", "x"])
def test_labels_join_to_the_text(sentence, tokenizers):
    for tokenizer in tokenizers:
        ids = tokenizer(sentence).input_ids
        labels = attention.token_labels(tokenizer, ids)
        assert labels[-1] == "</s>"
        whole = "".join(labels[:-1]).replace("▁", " ").encode().decode("unicode_escape").encode("latin-1").decode()
        assert whole == " " + sentence  # '\\xe2' and other parts of a character are joined again
        for token, label in zip(tokenizer.convert_ids_to_tokens(ids), labels, strict=True):
            if "\\x" not in label:
                assert decoders.ByteLevel().decode([token]) == label.replace("▁", " ")


def test_bytes_and_control_characters_are_escaped_and_other_tokenizers_left_alone(tokenizers):
    ids = tokenizers[0]("漢\n").input_ids
    assert attention.token_labels(tokenizers[0], ids) == ["▁", "\\xe6", "\\xbc", "\\xa2", "\\n", "</s>"]
    vocabulary = {"▁Haus": 0, "##er": 1, "Ġx": 2}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="Ġx")))
    assert attention.token_labels(tokenizer, [0, 1, 2]) == list(vocabulary)


# -- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("translator", "num_beams"), [("shared", 1), ("separate", 3)], indirect=["translator"])
def test_weights_equal_those_of_generate_step_by_step(translator, num_beams):
    model, source, target = translator
    maps = attention.attention_maps(model, source, target, SENTENCE, num_beams)
    assert model.config._attn_implementation == "sdpa"  # as before
    model.set_attn_implementation("eager")
    options = {"output_attentions": True, "return_dict_in_generate": True, "num_beams": num_beams}
    output = model.generate(**source([SENTENCE], return_tensors="pt", return_token_type_ids=False), **options)
    sequence = output.sequences[0].tolist()
    assert target.decode(sequence, skip_special_tokens=True) == maps.translation
    assert maps.read == ["<s>", *maps.written[:-1]]
    assert len(maps.written) == len(sequence) - 1
    for found, expected in zip(maps.encoder, output.encoder_attentions, strict=True):
        torch.testing.assert_close(found, expected[0], rtol=0, atol=1e-6)
    for step in range(len(maps.written)):
        row = output.beam_indices[0, step] if num_beams > 1 else 0
        for found, expected in zip(maps.decoder, output.decoder_attentions[step], strict=True):
            seen = expected[row, :, 0]  # (num_heads, step + 1)
            torch.testing.assert_close(found[:, step, : step + 1], seen, rtol=0, atol=1e-5)
            assert not found[:, step, step + 1 :].any()
        for found, expected in zip(maps.cross, output.cross_attentions[step], strict=True):
            torch.testing.assert_close(found[:, step], expected[row, :, 0], rtol=0, atol=1e-5)


def panels_of(figure):
    return [axis for axis in figure.axes if axis.get_title()]


@separate
def test_a_figure_shows_the_weights_with_their_labels(translator):
    maps = attention.attention_maps(*translator, SENTENCE)
    assert "".join(maps.source[:-1]).replace("▁", " ").strip() == SENTENCE
    expected = {
        "encoder self-attention": (maps.encoder[1], maps.source, maps.source),
        "decoder self-attention": (maps.decoder[1], maps.written, maps.read),
        "cross-attention": (maps.cross[1], maps.written, maps.source),
    }
    for kind, (weights, rows, columns) in expected.items():
        figure = attention.attention_figure(maps, kind, layer=2)
        panels = panels_of(figure)
        assert [axis.get_title() for axis in panels] == [f"layer 2, head {n + 1}" for n in range(len(weights))]
        for axis, head in zip(panels, weights, strict=True):
            np.testing.assert_array_equal(axis.images[0].get_array(), head.numpy())
            assert axis.images[0].get_clim() == (0, 1)
        assert [label.get_text() for label in panels[0].get_yticklabels()] == rows
        assert [label.get_text() for label in panels[-1].get_xticklabels()] == columns
        assert not any(label.get_parse_math() for label in panels[-1].get_xticklabels())  # "$5 or $6" is no formula
        assert SENTENCE in figure.get_suptitle().replace("\n", " ")


@pytest.mark.parametrize(
    ("heads", "sentence"),
    [
        pytest.param(1, ENGLISH[0] * 3, id="alone"),
        pytest.param(3, ENGLISH[0] * 3, id="below each other"),
        pytest.param(8, SENTENCE, id="side by side"),
    ],
)
def test_labels_do_not_overlap(heads, sentence, make_model, tokenizers):
    model = make_model(vocab_size=len(tokenizers[0]), d_model=48, encoder_attention_heads=heads)
    model.generation_config.max_new_tokens = 8
    maps = attention.attention_maps(model, tokenizers[0], tokenizers[0], sentence)
    figure = attention.attention_figure(maps, "encoder self-attention", layer=1)
    figure.draw_without_rendering()
    panels = panels_of(figure)
    assert len(panels) == heads
    for labels, side in ((panels[-1].get_xticklabels(), "x"), (panels[0].get_yticklabels(), "y")):
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: getattr(box, f"{side}0"))
        for first, second in pairwise(boxes):
            assert getattr(first, f"{side}1") <= getattr(second, f"{side}0") + 1
    boxes = [axis.get_window_extent() for axis in panels]
    assert not any(one.overlaps(other) for index, one in enumerate(boxes) for other in boxes[:index])


def test_a_long_map_is_cut_into_parts_in_reading_order():
    source, written = ([f"▁token{index}" for index in range(length)] for length in (100, 80))
    weights = {"encoder": [], "decoder": [], "cross": [torch.rand(2, 80, 100)]}
    maps = attention.AttentionMaps("A long sentence.", "Ein langer Satz.", source, written, written, **weights)
    figure = attention.attention_figure(maps, "cross-attention", layer=1)
    assert figure.get_figwidth() == saving.PAGE_WIDTH
    panels = panels_of(figure)
    assert [axis.get_title().split(", ")[1] for axis in panels] == ["head 1"] * 4 + ["head 2"] * 4
    parts = [axis.images[0].get_array() for axis in panels[:4]]
    np.testing.assert_array_equal(np.block([parts[:2], parts[2:]]), maps.cross[0][0].numpy())
    assert [label.get_text() for axis in panels[:2] for label in axis.get_xticklabels()] == source
    assert [label.get_text() for axis in panels[:4:2] for label in axis.get_yticklabels()] == written
    assert panels[3].get_title() == "layer 1, head 1, rows 41 to 80, columns 51 to 100"


@separate
def test_the_command_draws_the_last_layer_or_all(folder, tmp_path, monkeypatch):
    depths = {"encoder-self-attention": 2, "decoder-self-attention": 3, "cross-attention": 3}
    result = run("attention", folder, "The child costs $5.", "--beams", 2, "--out", tmp_path / "last")
    assert result.exit_code == 0, result.output
    pictures = list((tmp_path / "last").iterdir())
    assert {path.name for path in pictures} == {f"{kind}-layer-{depth}.png" for kind, depth in depths.items()}
    assert all(map(is_a_picture, pictures))
    monkeypatch.setattr(attention, "save", lambda figure, path: path)
    monkeypatch.setattr(attention, "attention_figure", lambda maps, kind, layer: None)
    shown = run("attention", folder, "The child", "--layer", "all", "--out", tmp_path / "all").stdout.splitlines()[1:]
    every = [f"{kind}-layer-{layer}.png" for kind, depth in depths.items() for layer in range(1, depth + 1)]
    assert shown == [str(tmp_path / "all" / name) for name in every]


# -- the other pictures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d_model", "length"), [(128, 100), (7, 5)])
def test_positions_equal_the_formula(d_model, length):
    figure = positions.positions_figure(d_model, length)
    expected = [
        [(math.cos if i % 2 else math.sin)(pos / 10000 ** (2 * (i // 2) / d_model)) for i in range(d_model)]
        for pos in range(length)
    ]
    curves, heat = figure.axes[:2]
    np.testing.assert_allclose(heat.images[0].get_array(), expected, rtol=0, atol=1e-9)
    for line in curves.lines:
        dimension = int(line.get_label().split()[1])
        assert line.get_label().endswith("(cosine)" if dimension % 2 else "(sine)")
        np.testing.assert_allclose(line.get_ydata(), [row[dimension] for row in expected], rtol=0, atol=1e-9)
    figure.draw_without_rendering()


def test_the_architecture_is_labelled_with_modules_that_exist(make_model, tmp_path):
    figure = diagram.architecture_figure()
    modules = {name.split(".")[-1] for name, _ in make_model().named_modules()}
    classes = {type(module).__name__ for module in make_model().modules()}
    named = set()
    for axis in figure.axes:
        for text in axis.texts:
            if text.get_fontfamily() == ["monospace"] and text.get_text() != "encoder_hidden_states":
                named.add(text.get_text().split()[0])
    assert named <= modules | classes
    stacks = {"embed_tokens", "embed_positions", "layer_norm", "dropout", "lm_head"}
    assert named >= stacks | {"self_attn", "cross_attn", "feed_forward", "ScratchEncoderLayer", "ScratchDecoderLayer"}
    assert run("architecture", "--out", tmp_path / "new" / "picture.png").exit_code == 0
    assert is_a_picture(tmp_path / "new" / "picture.png")


def test_characters_that_no_font_has_are_a_warning(monkeypatch, tmp_path, caplog):
    fonts = [font for font in font_manager.fontManager.ttflist if "mpl-data" in font.fname]  # Matplotlib's own
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    saving._fonts_for.cache_clear()
    figure = Figure(figsize=(2, 1))
    figure.text(0.5, 0.5, "\N{PAHAWH HMONG VOWEL KEEB}\N{PAHAWH HMONG VOWEL KEEV}")
    saving.save(figure, tmp_path / "characters.png")
    saving._fonts_for.cache_clear()
    (warning,) = caplog.messages
    assert "font" in warning


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", "MODEL", ""], "the sentence is empty"),
        (["attention", "MODEL", SENTENCE, "--layer", "3"], "only 2 layers"),
        (["attention", "MODEL", SENTENCE, "--layer", "0"], "not '0'"),
        (["attention", "MODEL", SENTENCE, "--layer", "first"], "not 'first'"),
        (["attention", "MODEL", SENTENCE * 40], "more than 100"),
        (["attention", "FILES/none", SENTENCE], "no such folder"),
        (["attention", "FILES", SENTENCE], "contains no model"),
        (["positions"], ".png"),
    ],
)
@separate
def test_bad_input_is_one_line(arguments, message, folder, tmp_path):
    out = tmp_path / "pictures.svg"
    arguments = [argument.replace("MODEL", str(folder)).replace("FILES", str(tmp_path)) for argument in arguments]
    result = run(*arguments, "--out", out)
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in result.output
    assert not out.exists()
