"""The translate command: one line out for each line in."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from unittest.mock import patch

import pytest
from conftest import read_metrics
from transformers import GenerationConfig
from translators import SENTENCES, Translating, by_hand, same_rows, two_vocabularies

from modeling_scratch.apps.translate import lines as text_input
from modeling_scratch.commands import translate
from modeling_scratch.data.corpus import HELD_OUT, make_corpus
from modeling_scratch.inference.alignments import Aligner, pharaoh
from modeling_scratch.inference.translate import Translation, Translator
from modeling_scratch.loading import load_tokenizers, load_translator
from modeling_scratch.model import batched_generation

UMASK = os.umask(0)
os.umask(UMASK)


@pytest.fixture(scope="module")
def folder():
    return two_vocabularies()


@pytest.fixture(scope="module")
def expected(folder):
    return by_hand(folder, SENTENCES)


def aligned(folder, pairs) -> list[str]:
    aligner = Aligner(load_translator(str(folder)), *load_tokenizers(str(folder)))
    return [pharaoh(aligner.align([source], [target])[0]) for source, target in pairs]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def without_cuts(stderr: str) -> str:
    """Standard error without these warnings: the model has learnt little, and often reaches the greatest length."""
    return re.sub(r"warning: .*(was|were) cut at .*\n", "", stderr)


@pytest.fixture
def run(folder, monkeypatch):
    """The command in this process: its exit code, standard output as bytes, and standard error."""

    def run(text: bytes = b"", model=folder, stderr=io.StringIO, **options) -> tuple[int, bytes, str]:
        output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "stderr", stderr())
        code = 0
        try:
            translate.main(str(model), **options)
        except SystemExit as stop:
            code = stop.code
        output.flush()
        return code, output.buffer.getvalue(), without_cuts(sys.stderr.getvalue())

    return run


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def test_a_line_for_each_line(run, expected):
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


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"batch_size": 3}, {"batch_tokens": 80}], ids=str)
def test_the_order_is_kept_in_batches_of_any_size(options, run, expected, monkeypatch):
    monkeypatch.setattr(text_input, "WINDOW", 5)
    few, translated = SENTENCES[:6], expected[:6]
    assert len(set(translated)) > 3
    assert run(lines(*few, "", *few[::-1]), **options)[1] == lines(*translated, "", *translated[::-1])


def test_generation_options(run, folder):
    few = SENTENCES[:5]
    for options in ({"num_beams": 1}, {"num_beams": 2, "length_penalty": 0.1, "max_new_tokens": 6}):
        assert run(lines(*few), **options) == (0, lines(*by_hand(folder, few, **options)), "")


def test_n_best_and_scores(run, expected, folder):
    code, output, _ = run(lines(SENTENCES[0], "", SENTENCES[1]), n_best=4)  # more than the model's three beams
    rows = [line.split("\t") for line in output.decode().splitlines()]
    assert code == 0
    assert [row[:2] for row in rows] == [[str(line), str(rank)] for line in (1, 2, 3) for rank in range(1, 5)]
    assert [row[2:] for row in rows[4:8]] == [["0.0000", ""]] * 4
    best = by_hand(folder, SENTENCES[:2], num_beams=4)
    assert [rows[0][3], rows[8][3]] == best
    assert all(float(row[2]) < 0 for row in rows[:4] + rows[8:])
    assert len({row[3] for row in rows[:4]}) == 4
    _, output, _ = run(lines(SENTENCES[0], ""), scores=True)
    (score, text), empty = [line.split("\t") for line in output.decode().splitlines()]
    assert (text, empty) == (expected[0], ["0.0000", ""])
    _, output, _ = run(lines(SENTENCES[0]), n_best=1)
    assert output.decode() == f"1\t1\t{score}\t{text}\n"


def test_files(run, expected, tmp_path, monkeypatch):
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(lines(*SENTENCES[:3]))
    target.write_text("before")
    assert run(input=source, output=target) == (0, b"", "")
    assert target.read_bytes() == lines(*expected[:3])
    assert run(input=source, output=source)[0] == 0  # overwriting its input
    assert source.read_bytes() == lines(*expected[:3])
    # An error or Ctrl-C in the middle leaves the old file.
    monkeypatch.setattr(Translator, "translate_batch", lambda *_, **settings: 1 / 0)
    code, _, stderr = run(input=source, output=target)
    assert code == 1
    assert "ZeroDivisionError" in stderr
    assert "please report it" in stderr

    def interrupt(*_, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "translate_batch", interrupt)
    assert run(input=source, output=target) == (130, b"", "\ninterrupted\n")
    assert target.read_bytes() == lines(*expected[:3])
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt"}


def test_alignments_end_a_line(run, folder, expected, monkeypatch):
    links = aligned(folder, zip(SENTENCES, expected, strict=True))
    assert len(set(links)) > 1
    rows = [f"{text}\t{each}" for text, each in zip(expected, links, strict=True)]
    assert run(lines("", *SENTENCES), alignments=True) == (0, lines("\t", *rows), "")


def columns(output: tuple[int, bytes, str]) -> list[list[str]]:
    return [row.split("\t") for row in output[1].decode().splitlines()]


def test_alignments_follow_scores_and_each_of_the_n_best(run, folder):
    text = lines(*SENTENCES[:2])
    assert [row[:-1] for row in columns(run(text, scores=True, alignments=True))] == columns(run(text, scores=True))
    several = columns(run(lines(SENTENCES[0]), n_best=3, alignments=True))
    assert [row[:2] for row in several] == [["1", "1"], ["1", "2"], ["1", "3"]]
    assert [row[4] for row in several] == aligned(folder, [(SENTENCES[0], row[3]) for row in several])


def test_an_ensemble_aligns_by_its_first_model(run, folder):
    ((text, links),) = columns(run(lines(SENTENCES[0]), others=[str(folder)], alignments=True))
    assert [links] == aligned(folder, [(SENTENCES[0], text)])


def test_links_named_pipes_and_permissions_of_the_output_stay(run, expected, tmp_path):
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
    assert reader.communicate(timeout=60)[0] == lines(*expected[:3])
    assert pipe.is_fifo()
    new = tmp_path / ("n" * 255)  # the longest name
    assert run(text, output=new)[0] == 0
    assert new.stat().st_mode & 0o777 == 0o666 & ~UMASK
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", "in an existing folder"),
        ("n" * 256, "File name too long"),
        ("/proc/none", "No such file or directory"),
    ],
)
def test_an_impossible_output_is_reported_before_the_model_is_loaded(output, message, run, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "load", None)
    code, _, error = run(output=tmp_path / output)  # pathlib keeps an absolute path
    assert (code, error.count("\n")) == (2, 1)
    assert message in error


def test_only_lines_that_may_be_too_long_are_tokenized_twice(run, expected, tmp_path, monkeypatch):
    (tmp_path / "source").write_bytes(lines(*SENTENCES, "b " * 30))
    sizes = []
    monkeypatch.setattr(text_input, "WINDOW", 5)

    def tokenize(tokenizer, sentences, limit):
        sizes.append(sum(map(bool, sentences)))
        return batched_generation.tokenize(tokenizer, sentences, limit)

    monkeypatch.setattr("modeling_scratch.inference.translate.tokenize", tokenize)
    assert run(input=tmp_path / "source")[1].startswith(lines(*expected))
    assert sum(sizes[:3]) == sum(len(each) >= 60 for each in [*SENTENCES, "b " * 30])  # characters; 60 tokens fit
    assert sizes[3:] == [5, 5, 3]


def test_workers_translate_a_large_file_as_one_process_does(run, folder, tmp_path, capfd):
    """By two models together, with lines that cannot be translated."""
    source = tmp_path / "source.txt"
    rows = [f"{sentence}\n".encode() for sentence in SENTENCES * 30]
    rows[200], rows[210] = b"cat " * 200 + b"\n", b"\xff\n"
    source.write_bytes(b"".join(rows))
    assert text_input.is_large(source)
    options = {"others": [str(folder)], "input": str(source), "n_best": 2, "keep_going": True, "max_new_tokens": 8}
    alone = run(workers=0, **options)
    shared = run(workers=2, **options)
    same_rows(shared[1], alone[1])
    assert (shared[0], shared[2]) == (alone[0], alone[2])
    assert alone[0] == 0
    assert "line 201: " in alone[2]
    assert "line 211: not valid UTF-8" in alone[2]
    written = [row.split("\t") for row in alone[1].decode().splitlines()]
    assert [row[:2] for row in written] == [[str(line), rank] for line in range(1, 361) for rank in ("1", "2")]


def test_line_ends_within_a_translation(run, monkeypatch):
    monkeypatch.setattr(
        Translator, "translate_batch", lambda self, texts, *_, **settings: [[Translation("a\nb\r\nc\td")]] * len(texts)
    )
    assert run(lines(*SENTENCES[:2]))[1] == lines(*["a b  c\td"] * 2)


LONG = "b " * 60  # more than 60 tokens
TOO_LONG = r"line 3: \d+ tokens, but the model takes 60\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": lines("a", "", LONG)}, f"standard input, {TOO_LONG}"),
        ({"input": "FILES/in.txt"}, f"/in.txt, {TOO_LONG}"),
        ({"text": b"a\nb\xffc\n"}, r"standard input, line 2: not valid UTF-8 \(invalid start byte\)"),
        ({"input": "FILES/none"}, "No such file or directory: '.*/none'"),
        ({"n_best": 3, "num_beams": 2}, "--n-best 3: --num-beams is 2; it must be at least as large"),
    ],
    ids=str,
)
def test_bad_input(options, message, run, tmp_path, monkeypatch):
    """One line on standard error, and nothing is translated."""
    monkeypatch.setattr(Translator, "translate_batch", None)
    (tmp_path / "in.txt").write_bytes(lines("a", "", LONG))
    files = {name: value.replace("FILES", str(tmp_path)) for name, value in options.items() if isinstance(value, str)}
    code, output, error = run(**(options | files))
    assert (code, output) == (2, b"")
    assert re.match(f"error: .*{message}", error)
    assert error.count("\n") == 1


def test_only_terminals_get_a_progress_bar(run, expected):
    text = lines(*SENTENCES[:3], "")
    code, output, error = run(text, stderr=Terminal)
    assert (code, output) == (0, lines(*expected[:3], ""))
    assert "4/4" in error
    assert " lines" in error
    assert run(text, stderr=Terminal, quiet=True) == (0, output, "")
    assert run(text) == (0, output, "")


def test_a_closed_pipe_and_an_interrupt_end_it_quietly(folder, tmp_path):
    """Their first lines are read before the reader goes away or Ctrl-C is pressed."""
    options = {"num_beams": 1, "max_new_tokens": 8}
    expected = lines(*by_hand(folder, SENTENCES[:1], **options))
    reader_gone, interrupted = (Translating(tmp_path / name, folder, **options) for name in "ab")
    for process in (reader_gone, interrupted):
        process.stdin.write(lines(*SENTENCES) * 500)  # their translations are more than a pipe holds
        process.stdin.close()
    assert [process.stdout.readline() for process in (reader_gone, interrupted)] == [expected] * 2
    reader_gone.stdout.close()
    interrupted.child.signal(signal.SIGINT)
    rest = interrupted.stdout.read()
    assert (reader_gone.child.end(), without_cuts(reader_gone.child.said)) == (141, "")
    assert (interrupted.child.end(), without_cuts(interrupted.child.said)) == (130, "\ninterrupted\n")
    assert rest.count(b"\n") < 5_000  # of 6,000


def test_sigterm_leaves_no_file(folder, tmp_path):
    (tmp_path / "out").mkdir()
    options = {"num_beams": 1, "max_new_tokens": 8, "output": str(tmp_path / "out" / "out.txt")}
    process = Translating(tmp_path / "stderr", folder, **options)
    process.stdin.write(lines(*SENTENCES) * 500)
    while not list((tmp_path / "out").iterdir()):
        time.sleep(0.01)
    process.child.signal(signal.SIGTERM)
    assert process.child.end() == 128 + signal.SIGTERM
    assert not list((tmp_path / "out").iterdir())


def test_a_lack_of_memory_comes_with_advice(run, monkeypatch):
    def forward(self, *args, **kwargs):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(Translator, "translate_batch", forward)
    code, _, error = run(lines("a"))
    assert code == 2
    assert "--batch-tokens" in error


def test_lines_are_translated_as_they_arrive(folder, expected, tmp_path):
    """Each comes back before the next is written; what waits is translated together; the last needs no line feed."""
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


def test_windows_of_a_pipe():
    """Whole lines only, however the bytes arrive."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, patch.object(sys, "stdin", io.TextIOWrapper(source)):
        text, asked = text_input.TextInput(None), []
        assert (text.total, text.is_terminal) == (None, False)
        windows = text.windows(1024, lambda: asked.append(True))
        os.write(writing, b"a\nb\nc")
        assert next(windows) == [b"a", b"b"]
        os.write(writing, b"d\n")
        assert next(windows) == [b"cd"]
        os.write(writing, b"\n" * 2000 + b"e")
        os.close(writing)
        rest = list(windows)
        assert [line for window in rest for line in window] == [b""] * 2000 + [b"e"]
        assert max(map(len, rest)) == 1024
        assert len(asked) <= 2 + len(rest)


def test_lines_that_cannot_be_translated_are_left_empty(run, expected):
    one, two = SENTENCES[:2]
    text = lines(one, LONG, "") + b"\xff\n" + lines(two, *[LONG] * 3)
    code, output, stderr = run(text, keep_going=True)
    assert (code, output) == (0, lines(expected[0], "", "", "", expected[1], "", "", ""))
    assert re.fullmatch(
        r"warning: line 2: \d+ tokens, but the model takes 60; left empty\n"
        r"warning: line 4: not valid UTF-8 \(invalid start byte\); left empty\n"
        r"warning: line 6: \d+ tokens, but the model takes 60; left empty\n"
        r"warning: 5 lines could not .* line 8\n",
        stderr,
    )
    _, rows, _ = run(lines(LONG, two), keep_going=True, n_best=2)
    assert [row.split("\t")[0] for row in rows.decode().splitlines()] == ["1", "1", "2", "2"]


def test_a_bad_line_ends_a_stream_after_those_before_it(folder, expected, tmp_path):
    process = Translating(tmp_path / "stderr", folder)
    process.stdin.write(lines(*SENTENCES[:2], LONG, SENTENCES[3]))
    process.stdin.close()
    assert process.stdout.read() == lines(*expected[:2])
    assert process.child.end() == 2
    assert re.match(TOO_LONG, process.child.said.rpartition("error: standard input, ")[2])


def test_warnings_are_totalled_before_an_error_too(folder, tmp_path):
    process = Translating(tmp_path / "stderr", folder, max_new_tokens=1)
    process.stdin.write(lines(*SENTENCES[:4], LONG))
    process.stdin.close()
    process.stdout.read()
    assert process.child.end() == 2
    assert re.search(r"4 lines were cut .* line 4\n", process.child.said)


def test_cut_translations_are_reported(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(*SENTENCES))))
    translate.main(str(folder), max_new_tokens=1)
    stderr = capsys.readouterr().err.splitlines()
    assert stderr[0].startswith("warning: line 1: the translation was cut at the maximum length")
    assert "12 lines" in stderr[-1]
    assert stderr[-1].endswith("line 12")
    assert len(stderr) == 4


def test_lines_longer_than_in_training_are_reported_once(folder, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(folder, tmp_path / "model")
    settings = json.loads((copy / "generation_config.json").read_text())
    (copy / "generation_config.json").write_text(json.dumps(settings | {"longest_training_source": 3}))
    (tmp_path / "text").write_bytes(lines("", SENTENCES[0]))
    translate.main(str(copy), input=str(tmp_path / "text"))  # read twice: first, to find what is too long
    stderr = [line for line in capsys.readouterr().err.splitlines() if "training" in line]
    assert len(stderr) == 1
    assert re.match(r"warning: line 2: \d+ tokens; .* more than 3,", stderr[0])


def test_the_longest_source_in_training_is_in_the_model(trained):
    config = GenerationConfig.from_pretrained(trained)
    tokenizer, _ = load_tokenizers(str(trained))
    size = read_metrics(trained, "run")[0]["train_pairs"]
    sources = [pair["en"] for pair in make_corpus(size, *HELD_OUT)["train"]]
    lengths = map(len, tokenizer(sources).input_ids)
    assert config.longest_training_source == max(length for length in lengths if length <= 64)  # the recipe's most


def test_a_terminal_is_prompted(folder, expected, tmp_path):
    """On a pseudo-terminal: a prompt before each line, and no progress bar."""
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
