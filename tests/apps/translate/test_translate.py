"""`scratch translate` with lines: one line out for each line in."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
from functools import partial
from unittest.mock import Mock

import pytest
from conftest import read_metrics
from transformers import GenerationConfig
from translators import (
    SENTENCES,
    Translating,
    by_hand,
    lines,
    run_translate,
    same_rows,
    two_vocabularies,
    without_cuts,
)
from waiting import LONGEST, wait_until

from modeling_scratch.apps.translate import lines as text_input
from modeling_scratch.data.corpus import HELD_OUT, make_corpus
from modeling_scratch.inference.alignments import Aligner, pharaoh
from modeling_scratch.inference.translate import Translator
from modeling_scratch.loading import load_tokenizers, load_translator
from modeling_scratch.model import batched_generation
from modeling_scratch.model.translations import Translation

UMASK = os.umask(0)
os.umask(UMASK)


@pytest.fixture(scope="module")
def folder():
    return two_vocabularies()


@pytest.fixture(scope="module")
def expected(folder):
    return by_hand(folder, SENTENCES)


def links(folder, pairs) -> list[str]:
    aligner = Aligner(load_translator(str(folder)), *load_tokenizers(str(folder)))
    return [pharaoh(aligner.align([source], [target])[0]) for source, target in pairs]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def run(folder, monkeypatch):
    return partial(run_translate, monkeypatch, folder)


def columns(output: bytes) -> list[list[str]]:
    return [row.split("\t") for row in output.decode().splitlines()]


def test_one_line_is_written_for_each_line(run, expected):
    first, second = expected[:2]
    assert first != second
    one, two = (sentence.encode() for sentence in SENTENCES[:2])
    for text, output in [
        (one + b"\n\n" + two + b"\n", lines(first, "", second)),
        (one + b"\r\n\r\n" + two + b"\r\n", lines(first, "", second)),
        (one + b"\n" + two, lines(first, second)),  # no line feed at the end
        (b"\xef\xbb\xbf" + one + b"\n \t\n\n", lines(first, "", "")),  # a byte order mark, as some editors write
        (b"\n", lines("")),
        (b"", b""),
    ]:
        assert run(text) == (0, output, "")


def test_lines_keep_their_order_across_batches_and_windows(run, expected, monkeypatch):
    monkeypatch.setattr(text_input, "WINDOW", 5)
    few, translated = SENTENCES[:6], expected[:6]
    assert len(set(translated)) > 3
    for options in ({}, {"batch_size": 3}):
        assert run(lines(*few, "", *few[::-1]), **options)[1] == lines(*translated, "", *translated[::-1])


def test_search_options_are_those_of_generate(run, folder):
    few = SENTENCES[:5]
    for options in ({"num_beams": 1}, {"num_beams": 2, "length_penalty": 0.1, "max_new_tokens": 6}):
        assert run(lines(*few), **options) == (0, lines(*by_hand(folder, few, **options)), "")


def test_n_best_and_scores_are_columns(run, expected, folder):
    code, output, _ = run(lines(SENTENCES[0], "", SENTENCES[1]), n_best=4)  # more than the model's three beams
    rows = columns(output)
    assert code == 0
    assert [row[:2] for row in rows[:4] + rows[5:]] == [[line, rank] for line in "13" for rank in "1234"]
    assert rows[4] == ["2", "1", "0.0000", ""]
    assert [rows[0][3], rows[5][3]] == by_hand(folder, SENTENCES[:2], num_beams=4)
    assert all(float(row[2]) < 0 for row in rows[:4] + rows[5:])
    assert len({row[3] for row in rows[:4]}) == 4
    (score, text), empty = columns(run(lines(SENTENCES[0], ""), scores=True)[1])
    assert (text, empty) == (expected[0], ["0.0000", ""])
    assert columns(run(lines(SENTENCES[0]), n_best=1)[1]) == [["1", "1", score, text]]


def test_each_text_is_among_the_n_best_once(run, monkeypatch):
    """Other tokens may spell the same text."""
    found = [Translation("a b", -1.0), Translation("a", -2.0), Translation("a b", -3.0), Translation("b", -4.0)]
    monkeypatch.setattr(Translator, "translate_batch", lambda self, texts, *_, **settings: [found] * len(texts))
    rows = columns(run(lines("x"), n_best=4)[1])
    assert [row[1:] for row in rows] == [["1", "-1.0000", "a b"], ["2", "-2.0000", "a"], ["3", "-4.0000", "b"]]


def test_alignments_are_the_last_column(run, folder, expected):
    expected_links = links(folder, zip(SENTENCES, expected, strict=True))
    assert len(set(expected_links)) > 1
    rows = [f"{text}\t{links}" for text, links in zip(expected, expected_links, strict=True)]
    assert run(lines("", *SENTENCES), alignments=True) == (0, lines("\t", *rows), "")
    scored = columns(run(lines(*SENTENCES[:2]), scores=True, alignments=True)[1])
    assert [row[:-1] for row in scored] == columns(run(lines(*SENTENCES[:2]), scores=True)[1])
    several = columns(run(lines(SENTENCES[0]), n_best=3, alignments=True)[1])
    assert [row[4] for row in several] == links(folder, [(SENTENCES[0], row[3]) for row in several])
    # In an ensemble, they are those of the first model.
    ((text, found),) = columns(run(lines(SENTENCES[0]), others=[str(folder)], alignments=True)[1])
    assert [found] == links(folder, [(SENTENCES[0], text)])


def test_an_output_file_appears_when_it_is_complete(run, expected, tmp_path, monkeypatch):
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(lines(*SENTENCES[:3]))
    target.write_text("before")
    assert run(input=source, output=target) == (0, b"", "")
    assert target.read_bytes() == lines(*expected[:3])
    assert run(input=source, output=source)[0] == 0  # it replaces its input
    assert source.read_bytes() == lines(*expected[:3])
    # After an error or Ctrl-C, the old file is there.
    for error, code, message in ((ZeroDivisionError, 1, "please report it"), (KeyboardInterrupt, 130, "interrupted")):
        monkeypatch.setattr(Translator, "translate_batch", Mock(side_effect=error))
        found, _, stderr = run(input=source, output=target)
        assert found == code
        assert message in stderr
    assert target.read_bytes() == lines(*expected[:3])
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt"}


def test_output_keeps_links_named_pipes_and_permissions(run, expected, tmp_path):
    text = lines(*SENTENCES[:3])
    target, link, pipe = tmp_path / "out.txt", tmp_path / "link.txt", tmp_path / "pipe"
    target.write_text("before")
    target.chmod(0o600)
    link.symlink_to(target.name)
    assert run(text, output=link) == (0, b"", "")
    assert link.is_symlink()
    assert target.read_bytes() == lines(*expected[:3])
    assert target.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    assert run(text, output=pipe) == (0, b"", "")
    assert reader.communicate(timeout=LONGEST)[0] == lines(*expected[:3])
    assert pipe.is_fifo()
    new = tmp_path / ("n" * 255)  # the longest name
    assert run(text, output=new)[0] == 0
    assert new.stat().st_mode & 0o777 == 0o666 & ~UMASK
    assert len(list(tmp_path.iterdir())) == 4


def test_a_dash_is_standard_input_and_output(run, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(lines(*SENTENCES[:3]), input="-", output="-") == (0, lines(*expected[:3]), "")
    assert not list(tmp_path.iterdir())


def test_a_write_protected_output_stays_and_its_owner_if_it_may_be_written(run, expected, tmp_path, monkeypatch):
    target, link = tmp_path / "out.txt", tmp_path / "link.txt"
    target.write_text("before")
    target.chmod(0o444)
    link.symlink_to(target.name)
    for output in (target, link):
        code, _, error = run(lines(SENTENCES[0]), output=output)
        assert (code, error.count("\n")) == (2, 1)
        assert "out.txt is write-protected" in error
    assert target.read_text() == "before"
    target.chmod(0o644)
    given = []
    monkeypatch.setattr(os, "chown", lambda path, *owner: given.append(owner))
    assert run(lines(SENTENCES[0]), output=target)[0] == 0
    assert given == [(target.stat().st_uid, target.stat().st_gid)]
    assert target.read_bytes() == lines(expected[0])


@pytest.mark.parametrize(("output", "message"), [(".", "folder"), ("n" * 256, "too long"), ("/proc/none", "No such")])
def test_an_impossible_output_is_refused_before_the_model_is_loaded(output, message, run, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "load", None)
    code, _, error = run(output=tmp_path / output)  # pathlib keeps an absolute path
    assert (code, error.count("\n")) == (2, 1)
    assert message in error


def test_a_line_of_a_file_is_tokenized_once_unless_it_may_be_too_long(run, expected, tmp_path, monkeypatch):
    (tmp_path / "source").write_bytes(lines(*SENTENCES, "b " * 30))
    sizes = []
    monkeypatch.setattr(text_input, "WINDOW", 5)

    def tokenize(tokenizer, sentences, limit, **features):
        sizes.append(sum(map(bool, sentences)))
        return batched_generation.tokenize(tokenizer, sentences, limit, **features)

    monkeypatch.setattr("modeling_scratch.inference.translate.tokenize", tokenize)
    assert run(input=tmp_path / "source")[1].startswith(lines(*expected))
    assert sum(sizes[:3]) == sum(len(line) >= 60 for line in [*SENTENCES, "b " * 30])  # characters; 60 tokens fit
    assert sizes[3:] == [5, 5, 3]


def test_workers_translate_a_large_file_as_one_process_does(run, folder, tmp_path):
    """Including by two models together, and with lines that cannot be translated."""
    source = tmp_path / "source.txt"
    rows = [f"{sentence}\n".encode() for sentence in SENTENCES * 30]
    rows[200], rows[210] = b"cat " * 200 + b"\n", b"\xff\n"
    source.write_bytes(b"".join(rows))
    assert text_input.is_large(source)
    options = {"others": [str(folder)], "input": str(source), "n_best": 2, "keep_going": True, "max_new_tokens": 4}
    alone, shared = (run(workers=workers, **options) for workers in (0, 2))
    same_rows(shared[1], alone[1])
    assert (shared[0], shared[2]) == (0, alone[2])
    assert re.search("line 201: .*\n.*line 211: ", alone[2])
    ranks = {line: "1" if line in (201, 211) else "12" for line in range(1, 361)}
    assert [row[:2] for row in columns(alone[1])] == [[str(line), rank] for line in ranks for rank in ranks[line]]


def test_line_ends_within_a_translation_become_spaces(run, monkeypatch):
    def translate_batch(self, texts, *_, **settings):
        return [[Translation("a\nb\r\nc\td")]] * len(texts)

    monkeypatch.setattr(Translator, "translate_batch", translate_batch)
    assert run(lines(*SENTENCES[:2]))[1] == lines(*["a b  c\td"] * 2)


LONG = "b " * 60  # more tokens than the model takes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": lines("a", "", LONG)}, "standard input, line 3: .*60"),
        ({"input": "FILES/in.txt"}, "/in.txt, line 3: .*60"),
        ({"text": b"a\nb\xffc\n"}, "standard input, line 2: .*UTF-8"),
        ({"input": "FILES/none"}, ".*/none: no such file or directory"),
        ({"n_best": 3, "num_beams": 2}, "--n-best 3: .*--num-beams"),
    ],
    ids=["too long", "too long in a file", "not UTF-8", "no file", "too many best"],
)
def test_bad_input_is_one_line_on_stderr_before_translating(options, message, run, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "translate_batch", None)
    (tmp_path / "in.txt").write_bytes(lines("a", "", LONG))
    files = {name: value.replace("FILES", str(tmp_path)) for name, value in options.items() if isinstance(value, str)}
    code, output, error = run(**(options | files))
    assert (code, output) == (2, b"")
    assert re.match(f"error: .*{message}", error)
    assert error.count("\n") == 1


def test_only_terminals_get_a_progress_bar(run, expected):
    text, output = lines(*SENTENCES[:3], ""), lines(*expected[:3], "")
    assert run(text) == (0, output, "")
    code, found, stderr = run(text, stderr=Terminal)
    assert (code, found) == (0, output)
    assert "4/4" in stderr
    assert run(text, stderr=Terminal, quiet=True) == (0, output, "")


def test_a_closed_pipe_and_ctrl_c_end_the_command_without_a_traceback(folder, tmp_path):
    """In the middle of the output, whose first line has been read."""
    options = {"num_beams": 1, "max_new_tokens": 8}
    expected = lines(*by_hand(folder, SENTENCES[:1], **options))
    reader_gone, interrupted = (Translating(tmp_path / name, folder, **options) for name in "ab")
    for process in (reader_gone, interrupted):
        process.stdin.write(lines(*SENTENCES) * 250)  # their translations are more than a pipe holds
        process.stdin.close()
    assert [process.stdout.readline() for process in (reader_gone, interrupted)] == [expected] * 2
    reader_gone.stdout.close()
    interrupted.child.signal(signal.SIGINT)
    rest = interrupted.stdout.read()
    assert (reader_gone.child.end(), without_cuts(reader_gone.child.output)) == (141, "")
    assert (interrupted.child.end(), without_cuts(interrupted.child.output)) == (130, "\ninterrupted\n")
    assert rest.count(b"\n") < 2_500  # of 3,000


def test_sigterm_leaves_no_temporary_file(folder, tmp_path):
    (tmp_path / "out").mkdir()
    options = {"num_beams": 1, "max_new_tokens": 8, "output": str(tmp_path / "out" / "out.txt")}
    process = Translating(tmp_path / "stderr", folder, **options)
    process.stdin.write(lines(*SENTENCES) * 500)
    wait_until(lambda: list((tmp_path / "out").iterdir()))
    process.child.signal(signal.SIGTERM)
    assert process.child.end() == 128 + signal.SIGTERM
    assert not list((tmp_path / "out").iterdir())


def test_running_out_of_memory_is_an_error_with_advice(run, monkeypatch):
    error = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
    monkeypatch.setattr(Translator, "translate_batch", Mock(side_effect=error))
    code, _, stderr = run(lines("a"))
    assert code == 2
    assert "--batch-tokens" in stderr


def test_lines_are_translated_as_they_arrive(folder, expected, tmp_path):
    """Each translation can be read before the next line is written, and the last line needs no line feed."""
    process = Translating(tmp_path / "stderr", folder)
    for sentence, translation in zip(SENTENCES[:3], expected, strict=False):
        process.stdin.write(f"{sentence}\n".encode())
        assert process.stdout.readline().decode() == f"{translation}\n"
    half = SENTENCES[3].encode()
    process.stdin.write(half[:4])
    process.stdin.write(half[4:] + b"\n\n" + SENTENCES[4].encode())
    process.stdin.close()
    assert process.stdout.read().decode().splitlines() == [expected[3], "", expected[4]]
    assert process.child.end() == 0


def test_lines_that_cannot_be_translated_are_left_empty(run, expected):
    one, two = SENTENCES[:2]
    text = lines(one, LONG, "") + b"\xff\n" + lines(two, *[LONG] * 3)
    code, output, stderr = run(text, keep_going=True)
    assert (code, output) == (0, lines(expected[0], "", "", "", expected[1], "", "", ""))
    warnings = ["line 2: .*60.*", "line 4: .*UTF-8.*", "line 6: .*60.*", "5 lines .* line 8"]
    assert re.fullmatch("".join(f"warning: {warning}\n" for warning in warnings), stderr)
    rows = columns(run(lines(LONG, two), keep_going=True, n_best=2)[1])
    assert [row[0] for row in rows] == ["1", "2", "2"]


def test_a_bad_line_ends_a_stream_after_the_lines_before_it_and_their_warnings(folder, tmp_path):
    process = Translating(tmp_path / "stderr", folder, max_new_tokens=1)
    process.stdin.write(lines(*SENTENCES[:4], LONG, SENTENCES[4]))
    process.stdin.close()
    assert process.stdout.read() == lines(*by_hand(folder, SENTENCES[:4], max_new_tokens=1))
    assert process.child.end() == 2
    assert re.search(r"warning: line 1: .* cut .*\n(.*\n)*.*4 lines were cut .* line 4\n", process.child.output)
    assert re.search("error: standard input, line 5: .*60", process.child.output)


def test_a_line_longer_than_in_training_is_reported_once(folder, tmp_path, monkeypatch):
    copy = shutil.copytree(folder, tmp_path / "model")
    settings = json.loads((copy / "generation_config.json").read_text())
    (copy / "generation_config.json").write_text(json.dumps(settings | {"longest_training_source": 3}))
    (tmp_path / "text").write_bytes(lines("", SENTENCES[0]))
    # A file's lines are checked before they are translated, and not reported again.
    stderr = run_translate(monkeypatch, copy, input=str(tmp_path / "text"))[2]
    assert re.fullmatch(r"warning: line 2: \d+ tokens; .* more than 3,.*\n", stderr)


def test_a_trained_model_records_the_longest_source(trained):
    config = GenerationConfig.from_pretrained(trained)
    tokenizer, _ = load_tokenizers(str(trained))
    size = read_metrics(trained, "run")[0]["train_pairs"]
    sources = [pair["en"] for pair in make_corpus(size, *HELD_OUT)["train"]]
    lengths = map(len, tokenizer(sources).input_ids)
    assert config.longest_training_source == max(length for length in lengths if length <= 64)  # the recipe's most


def test_a_terminal_gets_a_prompt_for_each_line_and_no_progress_bar(folder, expected, tmp_path):
    pty = pytest.importorskip("pty")
    main, terminal = pty.openpty()
    process = Translating(tmp_path / "stderr", folder, terminal)
    os.write(main, f"{SENTENCES[0]}\n".encode())
    assert process.stdout.readline().decode() == f"{expected[0]}\n"
    os.write(main, b"\x04")
    assert process.child.end() == 0
    stderr = os.read(main, 10_000).decode()
    assert "Ctrl-D" in stderr
    assert stderr.count("> ") == 2
    assert "lines/s" not in stderr
    os.close(main)
