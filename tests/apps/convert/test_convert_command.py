"""`scratch convert`: complete folders that translate the same, or a one-line error and no folder."""

import copy
import json
import math
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch
from conftest import quick_run, read_metrics
from foreign_models import NAMES, SETTINGS, SPECIAL, identical, marian, scratch, tutorial
from transformers import AutoTokenizer, MarianMTModel, MarianTokenizer
from translators import best
from typer.testing import CliRunner

from modeling_scratch import ScratchForConditionalGeneration
from modeling_scratch.apps.convert import from_marian, from_torch
from modeling_scratch.apps.convert.marian import widen
from modeling_scratch.commands import convert
from modeling_scratch.data.corpus import make_corpus
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.errors import UserError
from modeling_scratch.files import ending_on_signals
from modeling_scratch.inference.ensemble import load_together
from modeling_scratch.loading import load_tokenizers, load_translator, save_tokenizers

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),  # torch's, of a faster path
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning"),  # of Marian's tokenizer
]
PAIRS = make_corpus(300, 10, 10, seed=0)["train"]
SENTENCES = ["The cat sleeps.", PAIRS[0]["en"]]


def invoke(*arguments, code: int = 0):
    result = CliRunner().invoke(convert.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def refusal(folder, *arguments) -> str:
    """The error line of a command, which must leave nothing new in `folder`."""
    before = sorted(folder.iterdir())
    result = invoke(*arguments, code=2)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in result.stderr
    assert sorted(folder.iterdir()) == before
    return line


@pytest.mark.parametrize("command", ["to-torch", "torch", "ctranslate2"])
def test_a_full_disk_is_an_error_that_names_the_file(command, trained, make_model, tmp_path):
    """A limit on the size of files fails in the same calls of PyTorch, safetensors and CTranslate2."""
    source, options = tmp_path / "source", []
    if command == "ctranslate2":
        shutil.copytree(trained, source)
    else:
        make_model(decoder_attention_heads=4, decoder_ffn_dim=64).save_pretrained(source)
    if command == "torch":
        invoke("to-torch", source, source / "model.pt")
        source, options = source / "model.pt", ["--num-heads=4", "--norm-position=pre", "--activation-function=relu"]
        options += ["--scale-embedding", "--pad-token-id=0", "--bos-token-id=1", "--eos-token-id=2"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        line = refusal(tmp_path, command, source, tmp_path / "out", *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{tmp_path / 'out'} cannot be written" in line
    assert "File too large" in line


@pytest.fixture(scope="module")
def opus_folder(tmp_path_factory):
    """A folder like OPUS-MT's: a Marian model, SentencePiece files, and a tokenizer config without a class."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("opus")
    pieces = []
    for side, language in (("source", "en"), ("target", "de")):
        sentences = [pair[language] for pair in PAIRS]
        options = {"vocab_size": 150, "model_prefix": str(folder / side), "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), **options)
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        pieces += [line.split("\t")[0] for line in (folder / f"{side}.vocab").read_text().splitlines()[3:]]
        (folder / f"{side}.vocab").unlink()
    vocabulary = {piece: index for index, piece in enumerate(["</s>", "<unk>", *dict.fromkeys(pieces), "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    size = len(vocabulary)
    marian(vocab_size=size, pad_token_id=size - 1, decoder_start_token_id=size - 1).half().save_pretrained(folder)
    return folder


def run_folder(folder, tokenizers: int):
    """A folder like that of a run, with separate embeddings and one tokenizer or two."""
    languages = [("en", "de")] if tokenizers == 1 else [("en",), ("de",)]
    made = [train_tokenizer(iter([[pair[side] for pair in PAIRS for side in group]]), 300) for group in languages]
    sizes = {"vocab_size": len(made[0]), "decoder_vocab_size": len(made[1]) + 3 if tokenizers == 2 else None}
    model = scratch(**sizes, share_encoder_decoder_embeddings=False)
    model.generation_config.update(max_new_tokens=10, no_repeat_ngram_size=1)
    model.save_pretrained(folder)
    save_tokenizers(made[0], made[-1], folder)
    return folder


def translations(folder) -> list[str]:
    """In float64, so that two implementations and two precisions of the same weights agree."""
    model = load_translator(str(folder))
    model = widen(model) if isinstance(model, MarianMTModel) else model
    return best(model.double(), *load_tokenizers(str(folder)), SENTENCES)


# -- Marian ------------------------------------------------------------------------------------------------------------


def test_an_opus_model_is_converted_and_back(opus_folder, tmp_path):
    out, back = tmp_path / "out", tmp_path / "back"
    assert str(out) in invoke("marian", opus_folder, out).stdout
    assert sorted(tmp_path.iterdir()) == [out]
    expected = {"config.json", "generation_config.json", "model.safetensors", "modeling_scratch.py", "stacks.py"}
    expected |= {"source.spm", "target.spm", "vocab.json", "tokenizer_config.json"}
    assert expected <= {path.name for path in out.iterdir()}
    theirs, ours = (AutoTokenizer.from_pretrained(folder) for folder in (opus_folder, out))
    assert type(ours) is type(theirs)
    target = PAIRS[1]["de"]
    assert ours(SENTENCES, text_target=target).data == theirs(SENTENCES, text_target=target).data
    labels = ours(text_target=target).input_ids
    assert ours.decode(labels, skip_special_tokens=True) == theirs.decode(labels, skip_special_tokens=True)
    assert translations(out) == translations(opus_folder)
    assert load_translator(str(out)).dtype == torch.float16
    invoke("to-marian", out, back)
    assert identical(load_translator(str(back)), load_translator(str(opus_folder)))
    assert translations(back) == translations(opus_folder)
    assert not list(back.glob("*.py"))  # it loads without this project's code


@pytest.mark.parametrize("tokenizers", [1, 2])
def test_a_model_with_two_embeddings_converts_to_marian_and_back(tokenizers, tmp_path):
    source = run_folder(tmp_path / "scratch", tokenizers)
    invoke("to-marian", source, tmp_path / "marian")
    invoke("marian", tmp_path / "marian", tmp_path / "back")
    expected = translations(source)
    assert translations(tmp_path / "marian") == expected
    assert translations(tmp_path / "back") == expected
    assert all(expected)


def test_an_opus_model_is_fine_tuned_and_becomes_a_marian_model_again(opus_folder, tmp_path):
    """Half precision becomes float32, and padding stays on the right."""
    for split, pairs in (("train", PAIRS[:60]), ("validation", PAIRS[60:65]), ("test", PAIRS[65:70])):
        for language in ("en", "de"):
            (tmp_path / f"{split}.{language}").write_text("".join(f"{pair[language]}\n" for pair in pairs))
    invoke("marian", opus_folder, tmp_path / "opus")
    options = [f"model.start_from={tmp_path / 'opus'}", "model.overrides={}", "optimization.max_steps=4"]
    options += ["data.embedded_size=60", "data.mix=[{name: embedded, weight: 0.1}]"]
    options += [f"data.{split}_files={tmp_path / split}" for split in ("train", "validation", "test")]
    tuned = quick_run(tmp_path / "tuned", *options, "optimization.learning_rate=1e-3")
    (before,), (after,) = read_metrics(tuned, "before"), read_metrics(tuned, "test")
    assert (before["name"], before["sentences"]) == ("test", after["sentences"])
    invoke("to-marian", tuned, tmp_path / "marian")
    model = MarianMTModel.from_pretrained(tmp_path / "marian")
    original = MarianMTModel.from_pretrained(opus_folder, dtype=torch.float32)
    assert model.generation_config.bad_words_ids == original.generation_config.bad_words_ids != None  # noqa: E711
    changed = model.model.encoder.layers[0].fc1.weight - original.model.encoder.layers[0].fc1.weight
    assert 1e-5 < changed.abs().max() < 1e-2
    sentences, search = [pair["en"] for pair in PAIRS[:5]], {"max_new_tokens": 8, "num_beams": 2}
    tokenizer = MarianTokenizer.from_pretrained(opus_folder)
    written = model.double().generate(**tokenizer(sentences, padding=True, return_tensors="pt"), **search)
    found = best(load_translator(str(tuned)).double(), *load_tokenizers(str(tuned)), sentences, **search)
    assert found == tokenizer.batch_decode(written, skip_special_tokens=True)


def test_an_opus_model_with_two_vocabularies_is_refused(opus_folder, tmp_path):
    folder = Path(shutil.copytree(opus_folder, tmp_path / "opus"))
    shutil.copy(folder / "vocab.json", folder / "target_vocab.json")
    config = {"separate_vocabs": True, "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert "a vocabulary for each side" in refusal(tmp_path, "marian", folder, tmp_path / "out")


def test_ensembles_need_the_same_sentencepiece_files(opus_folder, tmp_path):
    same, other = tmp_path / "same", tmp_path / "other"
    invoke("marian", opus_folder, same)
    shutil.copytree(same, other)
    load_together([str(same), str(other)])
    shutil.copy(other / "source.spm", other / "target.spm")
    with pytest.raises(UserError, match=f"^{other}: its source tokenizer is not that of {same}; "):
        load_together([str(same), str(other)])


def test_a_model_without_a_tokenizer_is_converted_with_a_warning(tmp_path):
    marian().save_pretrained(tmp_path / "marian")
    assert "no tokenizer" in invoke("marian", tmp_path / "marian", tmp_path / "out").stderr
    assert not (tmp_path / "out" / "tokenizer_config.json").exists()


# -- torch.nn.Transformer ----------------------------------------------------------------------------------------------


def test_a_state_dict_is_converted_and_back(tmp_path):
    user = tutorial()
    torch.save(user.state_dict(), tmp_path / "user.pt")
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in SPECIAL.items()]
    settings += ["--num-heads=4", "--norm-position=post", "--activation-function=relu", "--scale-embedding"]
    invoke("torch", tmp_path / "user.pt", tmp_path / "model", *settings, "--dropout=0.2")
    model = load_translator(str(tmp_path / "model"))
    assert identical(model, from_torch(user.state_dict(), **NAMES, **SETTINGS, **SPECIAL))
    assert model.config.attention_dropout == 0.2
    shown = invoke("to-torch", tmp_path / "model", tmp_path / "back.pt").stdout
    assert "torch.nn.Transformer(24, 4, 2, 3, 40, activation='relu', layer_norm_eps=1e-05, norm_first=False" in shown
    back, state = torch.load(tmp_path / "back.pt", weights_only=True), user.state_dict()
    del state["positional_encoding.pos_embedding"]
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


# -- errors; further ones are in tests/commands/bad_input.txt ----------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    marian().save_pretrained(folder / "marian")
    scratch(norm_position="pre").save_pretrained(folder / "pre-norm")
    scratch(position_embedding_type="learned", max_position_embeddings=20).save_pretrained(folder / "learned")
    torch.save(tutorial(), folder / "pickled.pt")
    torch.save({"model": tutorial().state_dict(), "epoch": 3}, folder / "checkpoint.pt")
    torch.save([1], folder / "list.pt")
    return folder


@pytest.mark.parametrize(
    ("command", "source", "word"),
    [
        ("to-marian", "pre-norm", "norm_position is 'pre'"),
        ("to-torch", "learned", "'sinusoidal'"),
        ("torch", "pickled.pt", "state dict"),
        ("torch", "list.pt", "list"),
        ("torch", "checkpoint.pt", "epoch"),
    ],
)
def test_models_that_cannot_be_converted_are_refused(command, source, word, files):
    flags = ["--num-heads=4", "--norm-position=post", "--activation-function=relu", "--no-scale-embedding"]
    flags += ["--pad-token-id=1", "--bos-token-id=2", "--eos-token-id=3"]
    assert word in refusal(files, command, files / source, files / "out", *(flags if command == "torch" else []))


@pytest.mark.parametrize("error", [1e-2, math.nan])
def test_a_conversion_whose_logits_differ_is_refused(error, files, monkeypatch):
    def wrong(model):
        converted = from_marian(copy.deepcopy(model))
        converted.lm_head.bias.data[5] += error
        return converted

    monkeypatch.setattr("modeling_scratch.apps.convert.marian.from_marian", wrong)
    assert "logits differ" in refusal(files, "marian", files / "marian", files / "out")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_folder(number, files, monkeypatch):
    before = sorted(files.iterdir()), signal.getsignal(number)

    def interrupted(model, folder):
        folder.mkdir()
        (folder / "config.json").touch()
        signal.raise_signal(number)

    monkeypatch.setattr(ScratchForConditionalGeneration, "save_pretrained", interrupted)
    invoke("marian", files / "marian", files / "out", code=128 + number)
    assert (sorted(files.iterdir()), signal.getsignal(number)) == before


def test_a_signal_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_on_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGHUP, before)
