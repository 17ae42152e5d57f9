"""
Runs the tests under other releases of Python and PyTorch, with the newest release of every other package. A development
script. It downloads several gigabytes for each PyTorch with CUDA, unless PIP_EXTRA_INDEX_URL names an index of builds
for the CPU.

    python tests/other_versions.py                                       # every pair
    python tests/other_versions.py --python 3.12 --torch 2.11 newest     # some
    python tests/other_versions.py --torch pinned --tests tests/model    # constraints.txt; some tests

Prints a table of the installed versions and the results. Interpreters are found on PATH or in pyenv.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.11", "2.12", "2.13", "newest")
VERSIONS = "import torch, transformers as t; print(torch.__version__, t.__version__, sep=' | ')"


def find_interpreter(version: str) -> str | None:
    """The interpreter of a minor release of Python, if there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        places.insert(0, sys.executable)
    # Most commands of pyenv are for versions that are not installed, and fail.
    for place in filter(None, places):
        if not subprocess.run([place, "-c", ""], capture_output=True).returncode:
            return place
    return None


def installed(interpreter: str, torch: str, folder: Path) -> tuple[Path, str]:
    """Make an environment with this PyTorch. Returns its interpreter, and the error of pip, if any."""
    subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
    python = folder / "bin" / "python"
    wanted = {"newest": ["torch"], "pinned": ["--constraint", "constraints.txt"]}.get(torch, [f"torch=={torch}.*"])
    pip = [str(python), "-m", "pip", "install", "--quiet", *wanted, "--editable", ".[dev]"]
    done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True)
    return python, (done.stderr.strip() or "pip failed").splitlines()[-1] if done.returncode else ""


def run_tests(python: Path, tests: list[str]) -> tuple[bool, str]:
    """Run the tests, and print their output to stderr: whether they passed, and pytest's last line."""
    workers = str(min(os.cpu_count() or 1, 16))
    command = [str(python), "-m", "pytest", "-q", "-n", workers, "--dist", "loadfile", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        last = ""
        for line in process.stdout:
            print(line, end="", file=sys.stderr)
            last = line.strip() or last
    return process.returncode == 0, last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="minor releases")
    parser.add_argument("--torch", nargs="+", default=TORCHES, help="minor releases, newest, or pinned")
    parser.add_argument("--tests", nargs="+", default=[], help="files and folders; all tests if none is named")
    options = parser.parse_args()
    failed = False
    print("| Python | PyTorch | | Transformers | tests |\n|---|---|---|---|---|")
    for version in options.python:
        for torch in options.torch:
            with tempfile.TemporaryDirectory() as folder:
                found, result = "|", "no such interpreter"
                if interpreter := find_interpreter(version):
                    python, result = installed(interpreter, torch, Path(folder))
                    if not result:
                        found = subprocess.check_output([python, "-c", VERSIONS], text=True).strip()
                        passed, result = run_tests(python, options.tests)
                        failed |= not passed
            print(f"| {version} | {torch} | {found} | {result} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
