"""Features condition the output: from the columns of a table to the tokens, and to every way to use the model."""

import itertools
import random
from pathlib import Path

import pytest
from conftest import quick_run, read_metrics, run_training
from services import post, running
from test_local_files import table
from tokenizers import Tokenizer, normalizers
from translators import lines, load, run_translate

from modeling_scratch.apps.serve.engines import Directions, load_direction, load_torch_engine
from modeling_scratch.apps.serve.service import Limits, Service
from modeling_scratch.data.batches import PairCollator
from modeling_scratch.data.sources import load_pairs, side_of, source_of
from modeling_scratch.data.streaming import Position, StreamReader, open_stream, sample_pairs
from modeling_scratch.data.tokenizer import PairTokenizer, train_tokenizer
from modeling_scratch.errors import UserError
from modeling_scratch.hub.card import build_card
from modeling_scratch.model.batched_generation import tokenize
from modeling_scratch.model.text import INVISIBLE, with_features
from modeling_scratch.recipe.schema import DataSection, MixedSource
from modeling_scratch.run.records import RunRecords

US = "\x1f"  # ASCII's unit separator


@pytest.mark.parametrize(
    ("text", "features", "source"),
    [
        ("sleep", "V;PST;3;SG", f"V{US}PST{US}3{US}SG{US}sleep"),
        ("  two \t words", " B ;first  person;;A; ", f"B{US}first person{US}A{US}two words"),
        ("sleep", "", "sleep"),
        ("sleep", " ; ", "sleep"),
        (" ", "V;PST", ""),
        (f"V{US}sleep", f"A{US}B\u200b", f"A B{US}V sleep"),
    ],
    ids=["in order", "white space", "none", "blank", "without text", "none is made by text or feature"],
)
def test_a_source_is_its_features_each_with_a_separator_and_its_text(text, features, source):
    assert with_features(text, features) == source
    assert not INVISIBLE.search(source)


@pytest.mark.parametrize(
    ("kind", "pattern", "symbols"),
    [
        ("characters", None, ["a", "b", " ", "c"]),
        ("words", None, ["ab", "c"]),
        ("pattern", "ab|(.)", ["ab", " ", "c"]),
    ],
)
def test_a_feature_is_one_symbol(kind, pattern, symbols, tmp_path):
    """Also of the saved tokenizer. A feature that training lacks is one unknown symbol, and no part of the text."""
    given = [with_features("ab c", "V;first person;ab"), with_features("ab c", "new")]
    tokenizer = train_tokenizer(iter([given[:1]]), 100, kind, pattern)
    tokenizer.save_pretrained(tmp_path)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.encode(given[0]).tokens == [f"V{US}", f"first person{US}", f"ab{US}", *symbols, "</s>"]
    assert plain.encode(given[1]).tokens == ["<unk>", *symbols, "</s>"]
    assert tokenize(tokenizer, ["ab c"], None, features=["new"]) == [plain.encode(given[1]).ids]


def test_pieces_of_words_spell_features():
    tokenizer = train_tokenizer(iter([["some words"]]), 300)
    source = with_features("words", "V;PST")
    assert tokenizer.decode(tokenizer(source).input_ids, skip_special_tokens=True) == source


def test_every_input_has_features_or_none_has():
    tokenizer = train_tokenizer(iter([["ab"]]), 300)
    with pytest.raises(ValueError, match="features for 1 inputs, but the number of inputs is 2"):
        tokenize(tokenizer, ["a", "b"], None, features=["V"])
    with pytest.raises(ValueError, match="features of input 1 is of type NoneType"):
        tokenize(tokenizer, ["a", "b"], None, features=["V", None])


# -- columns of a table ------------------------------------------------------------------------------------------------

WORDS = DataSection()


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "parquet", "csv"])
def test_columns_of_features_are_read_in_their_order(kind, tmp_path):
    rows = [{"source": "go", "target": "went", "tags": "V;PST", "style": "old"}]
    rows += [{"source": "go", "target": "go", "tags": " ", "style": ""}]
    path = table(tmp_path, kind, rows)
    data = WORDS.model_copy(update={"train_files": [path], "feature_columns": ["style", "tags"]})
    source, expected = source_of("train", data, 0), ["old;V;PST", ""]
    assert source.load()["features"][:] == expected
    assert [row["features"] for row in source.stream()] == expected
    with pytest.raises(UserError, match=r"no column 'tag'.*set data\.feature_columns"):
        source_of("train", data.model_copy(update={"feature_columns": ["tag"]}), 0).load()
    with pytest.raises(UserError, match=r"data\.feature_columns: 'target' is the source or the target"):
        source_of("train", data.model_copy(update={"feature_columns": ["tags", "target"]}), 0).load()


def test_columns_may_have_numbers_and_a_data_set_on_the_hub_has_names(tmp_path):
    (tmp_path / "train.tsv").write_text("go\twent\tV;PST\nrun\tran\tV;PST\n")
    numbers = {"train_files": str(tmp_path / "train.tsv"), "source_column": 1, "target_column": 2}
    data = DataSection(**numbers, feature_columns=3, validation_size=1)
    assert load_pairs(data, 0)["train"]["features"][:] == ["V;PST"]
    (tmp_path / "hub").mkdir()
    table(tmp_path / "hub", "csv", [{"source": "go", "target": "went", "tags": "V;PST"}])
    hub = DataSection(name=str(tmp_path / "hub"), feature_columns=["tags"])
    assert source_of("train", hub, 0).load()[:] == {"source": ["go"], "target": ["went"], "features": ["V;PST"]}


def test_pairs_that_differ_in_features_are_different_pairs(tmp_path, caplog):
    """As those of words with two functions in one form; copies are not held out beside them."""
    rows = [{"source": "set", "target": "set", "tags": tag} for tag in "ABC"]
    data = DataSection(train_files=table(tmp_path, "tsv", rows), feature_columns="tags", validation_size=1)
    pairs = load_pairs(data, 0)
    assert sorted(pairs["train"]["features"][:] + pairs["validation"]["features"][:]) == ["A", "B", "C"]
    assert "copies" not in caplog.text


def test_mixed_pairs_may_have_no_features(tmp_path):
    rows = [{"source": "go", "target": "went", "tags": "V;PST"}] * 2 + [{"source": "a", "target": "b", "tags": ""}]
    train = table(tmp_path, "tsv", rows)
    more = table(tmp_path, "csv", [{"source": "c", "target": "d"}], name="more")
    data = DataSection(train_files=train, validation_files=more, feature_columns=["tags"])
    with pytest.raises(UserError, match="no column 'tags'"):
        load_pairs(data, 0)
    data = DataSection(train_files=train, feature_columns=["tags"], validation_size=1, mix=[MixedSource(files=more)])
    assert load_pairs(data, 0)["train"]["features"][-1] == ""


def test_text_files_and_embedded_pairs_have_no_features(tmp_path):
    for side in ("source", "target"):
        (tmp_path / f"t.{side}").write_text("a\n")
    with pytest.raises(UserError, match=r"data\.feature_columns: text files"):
        source_of("train", DataSection(train_files=str(tmp_path / "t"), feature_columns=[1]), 0).load()
    with pytest.raises(ValueError, match="feature_columns"):
        DataSection(feature_columns=["tags"])


# -- a model that needs its features -----------------------------------------------------------------------------------

CASES, ORDERS = {"UP": str.upper, "LOW": str.lower}, {"ON": lambda word: word, "BACK": lambda word: word[::-1]}
LETTERS = "abcdef"


def expected(word: str, case: str, order: str) -> str:
    return ORDERS[order](CASES[case](word))


@pytest.fixture(scope="module")
def held_out():
    words = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
    return random.Random(0).sample(words, 20)


@pytest.fixture(scope="module")
def options(held_out, tmp_path_factory) -> list[str]:
    """Of a run whose source is always a word of three letters, so that only features tell what to do with it."""
    folder = tmp_path_factory.mktemp("words")
    words = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
    for split, chosen in {"train": [word for word in words if word not in held_out], "validation": held_out}.items():
        cells = [
            (word, expected(word, *each), ";".join(each))
            for word in chosen
            for each in itertools.product(CASES, ORDERS)
        ]
        (folder / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in cells))
    files = [f"data.{split}_files={folder / split}.tsv" for split in ("train", "validation")]
    model = "{d_model: 32, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 64, dropout: 0.0}"
    return [
        *files,
        "data.test_files=null",
        "data.source_column=1",
        "data.target_column=2",
        "data.feature_columns=3",
        "tokenizer.kind=characters",
        "tokenizer.vocab_size=50",
        f"model.overrides={model}",
        "optimization.optimizer=muon",
        "optimization.learning_rate=0.01",
        "optimization.schedule=cosine",
        "optimization.max_steps=300",
        "evaluation.every=300",
        "evaluation.metric=exact_match",
        "evaluation.metrics=[exact_match]",
        "checkpoints.every=300",
        "logging_steps=100",
    ]


@pytest.fixture(scope="module")
def run(options, tmp_path_factory) -> Path:
    return quick_run(tmp_path_factory.mktemp("runs") / "run", *options)


def test_a_model_learns_what_its_features_ask_for(run):
    (record,) = [row for row in read_metrics(run, "validation") if row.get("final")]
    assert record["exact_match"] > 95
    assert record["samples"][1]["features"] == "UP;BACK"


def test_the_pipeline_takes_features_for_all_inputs_or_for_each(run, held_out):
    translator = load(run)
    word, other = held_out[:2]
    (alone,) = translator(word, features="UP;BACK")
    assert alone["translation_text"] == word.upper()[::-1]
    both = [{"translation_text": word[::-1]}, {"translation_text": other.upper()}]
    assert translator([word, other], features=["LOW;BACK", "UP;ON"]) == both
    streamed = translator(iter([word, other]), features=iter(["LOW;BACK", "UP;ON"]), batch_size=1)
    assert [row[0] for row in streamed] == both
    assert load(run, features="UP;ON")([word, other]) == [{"translation_text": text.upper()} for text in (word, other)]
    with pytest.raises(ValueError, match=r"features for 2 inputs.*separated by semicolons"):
        translator(word, features=["UP", "BACK"])
    with pytest.raises(ValueError, match="features for 0 inputs"):
        list(translator(iter([word, other]), features=["UP;ON"], batch_size=1))


def test_lines_get_features_from_an_option_or_from_a_column(run, held_out, tmp_path, monkeypatch):
    word, other = held_out[:2]
    done = run_translate(monkeypatch, run, lines(word, "", other), features="UP;BACK")
    assert done == (0, lines(word.upper()[::-1], "", other.upper()[::-1]), "")
    _, _, error = run_translate(monkeypatch, run, lines(word, "?" + other + "!"), features="UP;BACK;NEW", quiet=True)
    assert "line 1: 1 symbol or feature is not in the vocabulary" in error
    assert "line 2: 3 symbols or features are not in the vocabulary" in error
    (tmp_path / "in").write_bytes(lines(f"{word}\t?\tLOW;BACK", "", f"{other}\t\tUP;ON"))
    options = {"input": str(tmp_path / "in"), "features_column": 3, "quiet": True}
    assert run_translate(monkeypatch, run, **options) == (0, lines(word[::-1], "", other.upper()), "")
    with (tmp_path / "in").open("ab") as file:
        file.write(lines(word))
    code, output, error = run_translate(monkeypatch, run, **options)
    assert (code, output) == (2, b"")
    assert "line 4: there is no column 3" in error
    code, output, error = run_translate(monkeypatch, run, **options, keep_going=True)
    assert (code, output) == (0, lines(word[::-1], "", other.upper(), ""))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": "V", "features_column": 2}, "one of them"),
        ({"features": "V", "alignments": True}, "--alignments"),
        ({"features_column": 2, "format": "text"}, "--format text"),
    ],
)
def test_options_that_do_not_go_with_features(given, message, run, monkeypatch):
    code, output, error = run_translate(monkeypatch, run, **given)
    assert (code, output) == (2, b"")
    assert message in error


def test_the_service_takes_features(run, held_out):
    service = Service(Directions([load_direction(f"en:de={run}", load_torch_engine)]), Limits())
    with running(service) as url:

        def answered(**parameters) -> tuple[int, dict]:
            return post(f"{url}/translate", {"q": held_out[:2], "source": "en", "target": "de"} | parameters)

        assert answered(features="UP;BACK") == (200, {"translatedText": [word.upper()[::-1] for word in held_out[:2]]})
        assert answered(features="LOW;ON") == (200, {"translatedText": held_out[:2]})
        for wrong in ({"features": ["UP"]}, {"features": "a" * 1001}, {"features": "UP", "format": "html"}):
            status, answer = answered(**wrong)
            assert status == 400
            assert "features" in answer["error"]


def test_the_card_shows_features(run):
    text = build_card(run, "user/name", RunRecords(run)).text
    assert '`features="UP;ON"`' in text
    assert "| UP;BACK |" in text


def test_a_stream_has_the_same_sources(run, tmp_path):
    """For its tokenizer too."""
    recipe, tokenizer = RunRecords(run).recipe, load(run).tokenizer
    stream = open_stream(recipe.data, 0)
    given = side_of(next(iter(sample_pairs(stream, 3, 0))), "source")
    assert [source.count(US) for source in given] == [2, 2, 2]
    reader = StreamReader(
        stream, PairTokenizer(tokenizer, tokenizer, 64, 64), PairCollator(0), 8, 3, 0, 0, 1, Position()
    )
    batches = itertools.takewhile(lambda item: item[1].pool == 0, reader)
    found = [tokenizer.decode(row, skip_special_tokens=True) for batch, _ in batches for row in batch["input_ids"]]
    assert sorted(found) == sorted(given)


def test_a_tokenizer_that_drops_the_separator_is_refused(options, tmp_path, capsys):
    """As those of BERT and SentencePiece do, which remove control characters."""
    bert = train_tokenizer(iter([["ab"]]), 300)
    bert.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    bert.save_pretrained(tmp_path / "bert")
    adopted = ["tokenizer.kind=bpe", "tokenizer.vocab_size=400", f"tokenizer.existing={tmp_path / 'bert'}"]
    with pytest.raises(SystemExit):
        run_training(*options, *adopted, f"output_dir={tmp_path / 'run'}")
    assert "tokenizer.existing" in (error := capsys.readouterr().err)
    assert "data.feature_columns" in error
