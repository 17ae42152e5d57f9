"""Streams: readers share the pairs of each pass, and a resumed reader continues with the same batches."""

import itertools
import json
from collections import Counter
from types import SimpleNamespace

import datasets
import numpy as np
import pyarrow.parquet
import pytest
import torch
from accelerate import Accelerator
from conftest import ROOT, SMALL_RUN, few_sentences, quick_run, read_metrics
from forked import run_group
from safetensors.torch import load_file
from test_local_files import en_de
from train_on_processes import train_all

from modeling_scratch.data.batches import PairCollator
from modeling_scratch.data.corpus import HELD_OUT, make_corpus, stream_corpus
from modeling_scratch.data.sources import LocalFiles
from modeling_scratch.data.streaming import Position, StreamBatches, StreamReader, open_stream, sample_pairs
from modeling_scratch.data.tokenizer import PairTokenizer, train_tokenizer
from modeling_scratch.errors import UserError
from modeling_scratch.model.masking import IGNORE_INDEX
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.recipe.schema import DataSection

PAIRS = make_corpus(230, 0, 0, seed=5)["train"]
TOKENIZER = train_tokenizer(iter([[text for pair in PAIRS for text in pair.values()]]), 400)
STREAM = [*SMALL_RUN, "data.streaming=true", "data.shuffle_buffer=100", "optimization.max_steps=20"]


def jsonl(folder, shards=5) -> DataSection:
    for shard in range(shards):
        rows = [json.dumps({"translation": pair}) for pair in PAIRS[shard::shards]]
        (folder / f"part-{shard}.jsonl").write_text("\n".join(rows) + "\n")
    return en_de(train_files=str(folder / "part-*.jsonl"), streaming=True)


def text(folder) -> DataSection:
    for shard in range(3):
        for language in ("en", "de"):
            lines = "".join(f"{pair[language]}\n" for pair in PAIRS[shard::3])
            (folder / f"part-{shard}.{language}").write_text(lines)
    return en_de(train_files=str(folder / "part-*"), streaming=True)


def csv(folder) -> DataSection:
    (folder / "pairs.tsv").write_text("en\tde\n" + "".join(f"{pair['en']}\t{pair['de']}\n" for pair in PAIRS))
    return en_de(train_files=str(folder / "pairs.tsv"), streaming=True)


def parquet(folder) -> DataSection:
    """Two files of row groups of 30 pairs."""
    for shard in range(2):
        table = pyarrow.Table.from_pylist(PAIRS[shard::2])
        pyarrow.parquet.write_table(table, folder / f"part-{shard}.parquet", row_group_size=30)
    return en_de(train_files=str(folder / "part-*.parquet"), streaming=True)


def hub(folder) -> DataSection:
    """A data set as on the Hub, whose rows have other columns too."""
    for shard in range(2):
        rows = [{"id": number, "translation": pair} for number, pair in enumerate(PAIRS[shard::2])]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"train-{shard}.parquet")
    return en_de(name=str(folder), streaming=True)


def reader(data, reader=0, readers=1, position=None, pool_size=60, seed=3, limit=256, tokens=256):
    tokenizer, position = PairTokenizer(TOKENIZER, TOKENIZER, limit, limit), position or Position()
    return StreamReader(
        open_stream(data, 0), tokenizer, PairCollator(0), tokens, pool_size, seed, reader, readers, position
    )


def one_pass(stream) -> list:
    return list(itertools.takewhile(lambda batch: batch[1].passes == 0, stream))


def texts(batch) -> list[str]:
    return [
        TOKENIZER.decode([id for id in row.tolist() if id != IGNORE_INDEX], skip_special_tokens=True)
        for row in batch["labels"]
    ]


def targets(batches) -> Counter:
    return Counter(target for batch, _ in batches for target in texts(batch))


@pytest.mark.parametrize(
    ("kind", "readers"),
    [*((kind, 2) for kind in (jsonl, text, csv, parquet, hub)), (text, 1), (parquet, 3), (hub, 3), (jsonl, 5)],
)
def test_every_pair_is_read_once_in_each_pass_by_one_of_the_readers(kind, readers, tmp_path):
    data = kind(tmp_path)
    seen = [targets(one_pass(reader(data, index, readers))) for index in range(readers)]
    assert sum(seen, Counter()) == Counter(pair["de"] for pair in PAIRS)
    assert all(seen)


@pytest.mark.parametrize(("kind", "readers"), [(jsonl, 1), (text, 1), (parquet, 2), (csv, 2), (hub, 1), (hub, 3)])
def test_a_reader_resumed_after_any_batch_yields_the_same_batches(kind, readers, tmp_path):
    """Its position is stored as JSON."""
    data, position = kind(tmp_path), None
    passes = set()
    for batch, _ in itertools.islice(reader(data, 0, readers, tokens=512), 24 // readers + 4):  # more than a pass
        found, position = next(iter(reader(data, 0, readers, position, tokens=512)))
        assert all(torch.equal(found[name], batch[name]) for name in batch)
        position = Position(**json.loads(json.dumps(vars(position))))
        passes.add(position.passes)
    assert passes >= {0, 1}


def test_errors_while_reading_a_stream_are_user_errors(tmp_path, monkeypatch):
    def broken():
        yield {"source": "a", "target": "b"}
        raise KeyError("lost")

    data = jsonl(tmp_path)
    monkeypatch.setattr(LocalFiles, "stream", lambda _: datasets.IterableDataset.from_generator(broken))
    with pytest.raises(UserError, match="the training stream: KeyError: 'lost'"):
        list(sample_pairs(open_stream(data, 0), 10, 0))
    with pytest.raises(UserError, match="lost"):
        next(iter(reader(data)))


def test_streamed_batches_are_within_the_budget_of_similar_lengths_and_shuffled(tmp_path):
    data = jsonl(tmp_path)
    batches = one_pass(reader(data))
    for batch, _ in batches:
        rows, source_length = batch["input_ids"].shape
        assert rows * max(source_length, batch["labels"].shape[1]) <= 256
    padding = sum((batch["labels"] == IGNORE_INDEX).sum().item() for batch, _ in batches)
    assert padding / sum(batch["labels"].numel() for batch, _ in batches) < 0.1
    lengths = [batch["labels"].shape[1] for batch, _ in batches]
    assert lengths != sorted(lengths)  # not from short to long
    read = [pair["target"] for pair in open_stream(data, 0).part(0, 1, [3, 0])]
    order = [read.index(target) for batch, _ in batches for target in texts(batch)]
    assert sorted(order) == list(range(len(PAIRS)))
    assert np.corrcoef(order[:60], range(60))[0, 1] < 0.5
    others = reader(data, seed=4), reader(data, position=Position(passes=1))
    for other in others:
        batch, _ = next(iter(other))
        assert not torch.equal(batch["labels"], batches[0][0]["labels"])


def test_shards_are_read_in_a_different_order_in_each_pass(tmp_path):
    orders = set()
    for passes in range(4):
        rows = open_stream(jsonl(tmp_path), 0).part(0, 1, [3, passes])
        orders.add(tuple(row["target"] for row in rows))
    assert len(orders) > 1
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_errors_in_streamed_files_name_the_file(tmp_path):
    data = jsonl(tmp_path)
    path = tmp_path / "part-0.jsonl"
    content = path.read_text()
    path.write_text(content[: len(content) // 2] + "}{\n" + content[len(content) // 2 :])
    with pytest.raises(ValueError, match=r"part-0\.jsonl, line \d+: not JSON"):
        list(itertools.islice(reader(data), 60))
    (tmp_path / "short.en").write_text("one\ntwo\n")
    (tmp_path / "short.de").write_text("eins\n")
    section = en_de(streaming=True, train_files=str(tmp_path / "short"))
    with pytest.raises(
        ValueError, match=r"short.en has 2 lines and .*short.de has 1; line i of one must belong to line i"
    ):
        list(itertools.islice(reader(section), 60))


def test_long_pairs_are_dropped_and_counted_and_a_reader_without_pairs_is_an_error(tmp_path):
    limit = 20
    data = jsonl(tmp_path)
    batches = list(itertools.islice(reader(data, limit=limit), 60))
    passes = [position for _, position in batches if position.passes]
    short = [
        pair["de"]
        for pair in PAIRS
        if all(len(TOKENIZER(pair[language]).input_ids) <= limit for language in ("en", "de"))
    ]
    assert 0 < len(short) < len(PAIRS)
    assert targets(batch for batch in batches if batch[1].passes == 0) == Counter(short)
    assert passes[0].dropped == len(PAIRS) - len(short)
    with pytest.raises(ValueError, match="reader 1 of 1"):
        next(iter(reader(data, limit=1)))
    with pytest.raises(ValueError, match=r"reader 2 of 300|reader 232 of 300"):
        next(iter(reader(data, 231, 300)))


def test_the_embedded_stream_contains_no_held_out_sentence():
    held_out = {text for pairs in make_corpus(0, *HELD_OUT, 7).values() for pair in pairs for text in pair.values()}
    pairs = list(stream_corpus([0, 1], 400, 7, ("en", "de")))
    assert len(pairs) == 800
    assert not held_out & {text for pair in pairs for text in pair.values()}


def test_the_fingerprint_of_a_stream_from_the_hub_contains_its_commit(tmp_path, monkeypatch):
    commits = {None: "c2", "main": "c2", "c1": "c1"}

    class Builder:
        def __init__(self, name, subset, revision):
            assert (name, subset) == ("ada/pairs", "de-en")
            self.hash = commits[revision]

        def as_streaming_dataset(self, split):
            return datasets.IterableDataset.from_generator(lambda: iter(PAIRS))

    monkeypatch.setattr("modeling_scratch.data.sources.load_dataset_builder", Builder)
    fields = {"name": "ada/pairs", "subset": "de-en", "streaming": True}
    first, newest, main = (open_stream(en_de(**fields, revision=name), 0) for name in ("c1", None, "main"))
    assert (first.revision, newest.revision) == ("c1", "c2")
    assert first.fingerprint != newest.fingerprint == main.fingerprint


def test_parts_of_a_batch_must_fit_the_longest_pair_and_the_processes(tmp_path):
    recipe = load_recipe(
        ROOT / "configuration" / "recipes" / "embedded.yaml", [*STREAM, "optimization.gradient_accumulation_steps=9"]
    )
    tokenizer = PairTokenizer(TOKENIZER, TOKENIZER, 64, 64)
    with pytest.raises(ValueError, match=r"leaves 56 tokens for each of 9 parts .*\(64\)"):
        StreamBatches(open_stream(jsonl(tmp_path), 0), tokenizer, recipe, PairCollator(0), Accelerator(cpu=True))
    three = SimpleNamespace(num_processes=3, process_index=0)
    with pytest.raises(ValueError, match=r"2 parts, which 3 processes .* on 1 or 2"):
        StreamBatches(open_stream(jsonl(tmp_path), 0), tokenizer, recipe, PairCollator(0), three, readers=2)


@pytest.mark.parametrize(
    ("limit", "pool", "seen"),
    [
        (64, 50, None),  # few are dropped
        (20, 50, 50),
        (20, 1000, len(PAIRS)),  # the first pool contains all pairs
    ],
)
def test_one_warning_is_logged_if_many_pairs_are_dropped(limit, pool, seen, tmp_path, caplog):
    recipe = load_recipe(
        ROOT / "configuration" / "recipes" / "embedded.yaml",
        [*STREAM, f"data.shuffle_buffer={pool}", "data.num_workers=0"],
    )
    tokenizer = PairTokenizer(TOKENIZER, TOKENIZER, 64, limit)
    batches = StreamBatches(open_stream(jsonl(tmp_path), 0), tokenizer, recipe, PairCollator(0), Accelerator(cpu=True))
    for _ in itertools.islice(batches.iterate(), 40):  # more than a pass
        pass
    warned = [message for message in caplog.messages if "training pairs so far" in message]
    assert len(warned) == (seen is not None)
    assert all(f" of the {seen} training pairs so far (" in message for message in warned)
    assert batches.epochs() > 0
    assert batches.positions[0].dropped > 0


def test_data_workers_do_not_change_a_run(tmp_path):
    options = [*STREAM, "optimization.max_steps=4"]
    runs = [quick_run(tmp_path / str(workers), *options, f"data.num_workers={workers}") for workers in (0, 1)]
    first, second = (load_file(run / "model.safetensors") for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (runs[0] / "checkpoints" / "step-0000004" / "reader-0.json").is_file()


@pytest.mark.slow
def test_two_processes_read_the_batches_of_one_with_two_parts(tmp_path):
    """Without dropout. Halfway, two processes resume the run of one, and one resumes that of two."""
    options = [*STREAM, *few_sentences(), "model.overrides.dropout=0.0", "optimization.schedule=constant"]
    one, two = ([*options, f"output_dir={tmp_path / name}"] for name in ("one", "two"))
    one += ["optimization.gradient_accumulation_steps=2"]
    for processes, overrides, resume in ((1, one, False), (2, one, True), (2, two, False), (1, two, True)):
        half = [] if resume else ["optimization.max_steps=10"]
        run = {"overrides": [*overrides, *half], "resume": resume, "float64": True}
        run_group(tmp_path, processes, train_all, [run])
    first, second = (read_metrics(tmp_path / name, "train") for name in ("one", "two"))
    assert len(first) == len(second) == 20
    for one, other in zip(first, second, strict=True):
        assert one["target_tokens"] == other["target_tokens"]
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-9)
