"""
Every command line in bad_input.txt exits with code 2, prints one line with its key and its word, and writes nothing.

Without --config, `train.py` gets the small run of conftest.py. FILES is the folder that `write_files` fills.
"""

import shlex
from pathlib import Path

import pytest
import typer
from conftest import ROOT, SMALL_RUN, forget_accelerator, unchanged
from typer.testing import CliRunner

from modeling_scratch.commands import (
    compare,
    convert,
    corpus,
    distill,
    evaluate,
    figures,
    improve,
    serve,
    train,
    translate,
    upload,
)

TABLE = Path(__file__).parent / "bad_input.txt"
COMMANDS = {
    "train.py": train.main,
    "hub_upload.py": upload.main,
    "translate": translate.main,
    "compare": compare.main,
    "distill": distill.main,
    "evaluate": evaluate.main,
    "improve": improve.main,
    "serve": serve.main,
}
GROUPS = {"convert": convert.app, "corpus": corpus.app, "figures": figures.app}


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"


def entries() -> list[tuple[str, str, str]]:
    """Command lines, each with the key and the word that its error must contain."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    found = []
    for line in lines:
        command, _, expected = line.partition(" => ")
        key, _, word = expected.partition(" | ")
        assert key, line
        assert word, line
        found.append((command, key, word))
    return found


def numbered(sentence: str, count: int) -> str:
    return "".join(f"{sentence} {number}\n" for number in range(count))


def write_files(folder: Path) -> None:
    """Data, recipes and folders; their names say what is wrong with them."""
    rows = '{{"en": {en}, "de": {de}}}\n'
    texts: dict[str, str | bytes] = {
        "good.en": numbered("a dog", 40),
        "good.de": numbered("ein Hund", 40),
        "held-out.en": numbered("a cat", 10),
        "held-out.de": numbered("eine Katze", 10),
        "short.en": numbered("a", 39),
        "short.de": numbered("b", 40),
        "memory.tmx": "<tmx/>",
        "broken.jsonl": rows.format(en='"a"', de='"b"') + "{bad\n",
        "nulls.jsonl": rows.format(en="null", de="null") * 40,
        "other-columns.jsonl": '{"english": "a", "german": "b"}\n' * 40,
        "text.parquet": "text",
        "twice.yaml": "output_dir: a\nseed: 1\nseed: 2\noptimization: {max_steps: 1}\n",
        "list.yaml": "- a\n",
        "broken.yaml": "a: [1\n",
        "tab.yaml": "a:\n\tb: 1\n",
        "binary.yaml": b"\x00\x01\xff",
        "deep.yaml": f"a: {'[' * 1000}",
        "no-output.yaml": "optimization: {max_steps: 1}\n",
        "a-run/recipe.yaml": "output_dir: x\noptimization: {max_steps: 1}\n",
        "unknown-key.yaml": "output_dir: x\noptimization: {max_steps: 1}\nfoo: 1\n",
        "marian/config.json": '{"model_type": "marian"}',
        "no-weights/config.json": '{"model_type": "scratch", "d_model": 32}',
        "bad-config/config.json": '{"model_type": "scratch", "d_model": "wide"}',
        "tag.yaml": "output_dir: !!python/object/apply:os.system [ls]\n",
        "text.pt": "hello",
        "pointer.pt": POINTER,
        "pointer/config.json": '{"model_type": "scratch"}',
        "pointer/tokenizer.json": POINTER,
        "deep-config/config.json": "[" * 100_000,
        "list-tokenizer/config.json": '{"model_type": "scratch"}',
        "list-tokenizer/tokenizer.json": "[1, 2]",
        "list-tokenizer/tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
    }
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in ("self", "self.yaml", "self.jsonl", "self.png"):
        (folder / name).symlink_to(name)
    for name in ("protected", "protected.png"):
        (folder / name).touch(mode=0o444)
    (folder / "folder.png").mkdir()


def run_line(command: str, folder: Path) -> tuple[int, str, str]:
    """Run a command line: its exit code, error line and standard output."""
    name, *arguments = [word.replace("FILES", str(folder)) for word in shlex.split(command)]
    if name == "train.py" and "--config" not in arguments:
        arguments = [*SMALL_RUN, f"output_dir={folder / 'run'}", *arguments]
    app = GROUPS.get(name)
    if app is None:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(COMMANDS[name])
    forget_accelerator()
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) <= 1, lines
    line = lines[0].removeprefix("error: ") if lines else ""
    return result.exit_code, line.replace(str(folder), "FILES").replace(str(ROOT), "ROOT"), result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


@pytest.mark.filterwarnings("ignore:`log_with=:UserWarning")  # Accelerate's, of a tracker that is not installed
@pytest.mark.parametrize(("command", "key", "word"), entries(), ids=[command for command, *_ in entries()])
def test_a_bad_command_line_ends_with_one_line_and_writes_nothing(command, key, word, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with unchanged(folder):
        code, line, out = run_line(command, folder)
    assert code == 2
    assert key in line
    assert word in line
    assert out == ""
