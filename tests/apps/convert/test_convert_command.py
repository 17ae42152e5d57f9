"""The convert command: complete folders, which load without this project, or one-line errors and no folder."""

import copy
import json
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch
from conftest import quick_run, read_metrics, run_command
from foreign_models import (
    NAMES,
    SPECIAL,
    TOLD,
    identical,
    marian,
    scratch,
    tutorial,
)
from transformers import AutoTokenizer, MarianMTModel, MarianTokenizer
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
from modeling_scratch.training.evaluation import translate

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),  # torch's, of a faster path
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning"),  # of Marian's tokenizer
]


PAIRS = make_corpus(300, 10, 10, seed=0)["train"]


def invoke(*arguments, code: int = 0):
    result = CliRunner().invoke(convert.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def refusal(folder, *arguments) -> str:
    """The error line of a command, which must leave nothing new in `folder`."""
    before = sorted(folder.iterdir())
    result = invoke(*arguments, code=2)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(folder.iterdir()) == before
    return lines[0]


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


def run_folder(folder, tokenizers: int = 1, **fields):
    """A folder like one that training writes, with a model that Marian can express."""
    languages = [("en", "de")] if tokenizers == 1 else [("en",), ("de",)]
    made = [train_tokenizer(iter([[pair[each] for pair in PAIRS for each in group]]), 300) for group in languages]
    sizes = {"vocab_size": len(made[0])}
    if tokenizers == 2:
        sizes |= {"decoder_vocab_size": len(made[1]) + 3, "share_encoder_decoder_embeddings": False}
    model = scratch(**(sizes | fields))
    model.generation_config.update(max_new_tokens=10, no_repeat_ngram_size=1)
    model.save_pretrained(folder)
    save_tokenizers(made[0], made[-1], folder)
    return folder


@pytest.fixture(scope="module")
def few_pairs(tmp_path_factory) -> list[str]:
    """Overrides for a run on very few sentences: SentencePiece's tokenizer is slow."""
    folder = tmp_path_factory.mktemp("few-pairs")
    for split, pairs in (("train", PAIRS[:60]), ("validation", PAIRS[60:65]), ("test", PAIRS[65:70])):
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text("".join(f"{pair[language]}\n" for pair in pairs))
    return [
        "data.embedded_size=60",
        *(f"data.{split}_files={folder / split}" for split in ("train", "validation", "test")),
    ]


def translations(folder) -> list[str]:
    """In float64, so that two implementations and two precisions of the same weights can be compared."""
    model = load_translator(str(folder))
    model = widen(model) if isinstance(model, MarianMTModel) else model
    return translate(model.double(), *load_tokenizers(str(folder)), ["The cat sleeps.", PAIRS[0]["en"]])


# Translates with Transformers alone.
LOADS_ALONE = """
import json, sys
sys.modules["modeling_scratch"] = None  # as on a machine without this project
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
outputs = []
for folder, target, trust in json.loads(sys.argv[1]):
    options = {"trust_remote_code": True} if trust else {}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    target = AutoTokenizer.from_pretrained(folder, subfolder=target, **options) if target else tokenizer
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, **options).double()
    inputs = tokenizer(json.loads(sys.argv[2]), padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    outputs.append([type(model).__name__, target.batch_decode(model.generate(**inputs), skip_special_tokens=True)])
print(json.dumps(outputs))
"""


def test_an_opus_model_is_fine_tuned_and_becomes_a_marian_model_again(opus_folder, few_pairs, tmp_path):
    """Half precision becomes float32, and padding stays on the right."""
    invoke("marian", opus_folder, tmp_path / "opus")
    options = [f"model.start_from={tmp_path / 'opus'}", "model.overrides={}", "optimization.max_steps=4", *few_pairs]
    mixed = "data.mix=[{name: embedded, weight: 0.1}]"
    tuned = quick_run(tmp_path / "tuned", *options, mixed, "optimization.learning_rate=1e-3")
    (before,), (after,) = read_metrics(tuned, "before"), read_metrics(tuned, "test")
    assert (before["name"], before["sentences"]) == ("test", after["sentences"])
    invoke("to-marian", tuned, tmp_path / "marian")
    model = MarianMTModel.from_pretrained(tmp_path / "marian")
    original = MarianMTModel.from_pretrained(opus_folder, dtype=torch.float32)
    assert model.generation_config.bad_words_ids == original.generation_config.bad_words_ids != None  # noqa: E711
    changed = model.model.encoder.layers[0].fc1.weight - original.model.encoder.layers[0].fc1.weight
    assert 1e-5 < changed.abs().max() < 1e-2
    sentences = [pair["en"] for pair in PAIRS[:5]]
    tokenizer = MarianTokenizer.from_pretrained(opus_folder)
    written = model.double().generate(
        **tokenizer(sentences, padding=True, return_tensors="pt"), max_new_tokens=8, num_beams=2
    )
    found = translate(
        load_translator(str(tuned)).double(), *load_tokenizers(str(tuned)), sentences, max_new_tokens=8, num_beams=2
    )
    assert found == tokenizer.batch_decode(written, skip_special_tokens=True)


@pytest.mark.slow
def test_folders_load_without_this_project(opus_folder, tmp_path):
    loaded, expected = [], []
    for tokenizers in (1, 2):
        source = run_folder(tmp_path / f"scratch-{tokenizers}", tokenizers)
        invoke("to-marian", source, tmp_path / f"marian-{tokenizers}")
        loaded.append((str(tmp_path / f"marian-{tokenizers}"), "target_tokenizer" if tokenizers == 2 else "", False))
        expected.append(["MarianMTModel", translations(source)])
    invoke("marian", opus_folder, tmp_path / "from-opus")
    loaded.append((str(tmp_path / "from-opus"), "", True))
    expected.append(["ScratchForConditionalGeneration", translations(opus_folder)])
    sources = ["The cat sleeps.", PAIRS[0]["en"]]
    result = run_command("-c", LOADS_ALONE, json.dumps(loaded), json.dumps(sources), PYTHONPATH="")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == expected
    assert all(text for _, texts in expected for text in texts)


def test_a_marian_folder_is_converted_and_back(opus_folder, tmp_path):
    out = tmp_path / "out"
    result = invoke("marian", opus_folder, out)
    assert result.stdout.startswith(f"wrote {out}; largest difference of logits")
    assert sorted(tmp_path.iterdir()) == [out]
    expected = {"config.json", "generation_config.json", "model.safetensors", "modeling_scratch.py", "stacks.py"}
    expected |= {"source.spm", "target.spm", "vocab.json", "tokenizer_config.json"}
    assert expected <= {path.name for path in out.iterdir()}
    theirs, ours = (AutoTokenizer.from_pretrained(folder) for folder in (opus_folder, out))
    assert type(ours) is type(theirs)
    target = PAIRS[1]["de"]
    assert ours("The cat sleeps.", text_target=target).data == theirs("The cat sleeps.", text_target=target).data
    labels = ours(text_target=target).input_ids
    assert ours.decode(labels, skip_special_tokens=True) == theirs.decode(labels, skip_special_tokens=True)
    expected = translations(opus_folder)
    assert translations(out) == expected
    assert load_translator(str(out)).dtype == torch.float16
    back = tmp_path / "back"
    invoke("to-marian", out, back)
    assert identical(load_translator(str(back)), load_translator(str(opus_folder)))
    assert translations(back) == expected


def test_separate_embeddings_survive_a_round_trip(tmp_path):
    """Marian's config then has a second vocabulary, whether or not there is a second tokenizer."""
    source = run_folder(tmp_path / "scratch", 1, share_encoder_decoder_embeddings=False)
    invoke("to-marian", source, tmp_path / "marian")
    invoke("marian", tmp_path / "marian", tmp_path / "back")
    assert translations(tmp_path / "back") == translations(source)


def test_an_opus_model_with_two_vocabularies_is_refused(opus_folder, tmp_path):
    folder = Path(shutil.copytree(opus_folder, tmp_path / "opus"))
    shutil.copy(folder / "vocab.json", folder / "target_vocab.json")
    config = {"separate_vocabs": True, "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    size = len(json.loads((folder / "vocab.json").read_text()))
    sizes = {"vocab_size": size, "decoder_vocab_size": size, "share_encoder_decoder_embeddings": False}
    model = marian(**sizes, pad_token_id=size - 1, decoder_start_token_id=size - 1, tie_word_embeddings=False)
    model.save_pretrained(folder)
    assert "a vocabulary for each side" in refusal(tmp_path, "marian", folder, tmp_path / "out")


def test_ensembles_need_the_same_sentencepiece_files(opus_folder, tmp_path):
    same, other = tmp_path / "same", tmp_path / "other"
    invoke("marian", opus_folder, same)
    shutil.copytree(same, other)
    ensemble = load_together([str(same), str(other)])
    sentences = ["The cat sleeps.", PAIRS[0]["en"]]
    together, alone = (model.double() for model in (ensemble[0], load_translator(str(same))))
    assert translate(together, *ensemble[1:], sentences) == translate(alone, *ensemble[1:], sentences)
    shutil.copy(other / "source.spm", other / "target.spm")
    with pytest.raises(UserError, match=f"^{other}: its source tokenizer is not that of {same}; "):
        load_together([str(same), str(other)])


def test_a_model_without_tokenizer_is_converted_with_a_warning(tmp_path):
    marian().save_pretrained(tmp_path / "marian")
    result = invoke("marian", tmp_path / "marian", tmp_path / "out")
    assert "has no tokenizer" in result.stderr
    assert not (tmp_path / "out" / "tokenizer_config.json").exists()


def test_a_state_dict_is_converted_and_back(tmp_path):
    user = tutorial()
    torch.save(user.state_dict(), tmp_path / "user.pt")
    tokens = [f"--{name.replace('_', '-')}={value}" for name, value in SPECIAL.items()]
    told = ["--num-heads=4", "--norm-position=post", "--activation-function=relu", "--scale-embedding"]
    result = invoke("torch", tmp_path / "user.pt", tmp_path / "model", *told, *tokens, "--dropout=0.2")
    assert "largest difference of logits" in result.stdout
    model = load_translator(str(tmp_path / "model"))
    assert identical(model, from_torch(user.state_dict(), **NAMES, **TOLD, **SPECIAL))
    assert model.config.attention_dropout == 0.2
    result = invoke("to-torch", tmp_path / "model", tmp_path / "back.pt")
    assert "torch.nn.Transformer(24, 4, 2, 3, 40, activation='relu', layer_norm_eps=1e-05, norm_first=False" in (
        result.stdout
    )
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    state = user.state_dict()
    del state["positional_encoding.pos_embedding"]
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


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
    """Further errors are in tests/commands/bad_input.txt."""
    flags = ["--num-heads=4", "--norm-position=post", "--activation-function=relu", "--no-scale-embedding"]
    flags += ["--pad-token-id=1", "--bos-token-id=2", "--eos-token-id=3"]
    assert word in refusal(files, command, files / source, files / "out", *(flags if command == "torch" else []))


@pytest.mark.parametrize("error", [1e-2, math.nan])
def test_a_conversion_with_another_result_is_refused(error, files, monkeypatch):

    def wrong(model):
        converted = from_marian(copy.deepcopy(model))
        converted.lm_head.bias.data[5] += error
        return converted

    monkeypatch.setattr("modeling_scratch.apps.convert.marian.from_marian", wrong)
    assert "conversion failed" in refusal(files, "marian", files / "marian", files / "out")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_folder(number, tmp_path, monkeypatch):
    marian().save_pretrained(tmp_path / "marian")
    before = sorted(tmp_path.iterdir()), signal.getsignal(number)

    def interrupted(model, folder):
        folder.mkdir()
        (folder / "config.json").touch()
        signal.raise_signal(number)

    monkeypatch.setattr(ScratchForConditionalGeneration, "save_pretrained", interrupted)
    invoke("marian", tmp_path / "marian", tmp_path / "out", code=128 + number)
    assert (sorted(tmp_path.iterdir()), signal.getsignal(number)) == before


def test_a_signal_that_is_ignored_as_under_nohup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_on_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGHUP, before)
