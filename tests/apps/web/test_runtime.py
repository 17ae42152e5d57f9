"""The JavaScript packages of pages are fetched with npm, checked and cached."""

import base64
import hashlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from modeling_scratch.apps.web import runtime
from modeling_scratch.errors import UserError


def archive(package: runtime.Package) -> bytes:
    """A package as npm packs it."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name in package.files:
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))
    return content.getvalue()


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """
    A command npm that returns stand-ins for the pinned packages. Returns the file with the packages that were asked
    for, and the folder with the archives.
    """
    archives, packages = tmp_path / "archives", []
    archives.mkdir()
    for package in runtime.PACKAGES:
        content = archive(package)
        (archives / package.name.replace("/", "-")).write_bytes(content)
        packages.append(replace(package, sha512=base64.b64encode(hashlib.sha512(content).digest()).decode()))
    monkeypatch.setattr(runtime, "PACKAGES", tuple(packages))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls, command = tmp_path / "calls", tmp_path / "bin" / "npm"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\necho "$2" >> {calls}\n'
        f'name=$(echo "${{2%@*}}" | tr / -)\n'
        f"if ! [ -f {archives}/$name ]; then\n"
        '  printf "npm error code E404\\nnpm error 404 Not Found\\nnpm error See a log" >&2\n'
        "  exit 1\nfi\n"
        f'cp {archives}/$name "$5/package.tgz"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return calls, archives


def test_packages_are_fetched_once_with_their_licenses(npm):
    calls, _ = npm
    paths = runtime.runtime_files()
    names = [name for package in runtime.PACKAGES for name in package.files if name.startswith("dist/")]
    assert sorted(path.read_text() for path in paths) == sorted(names)
    assert runtime.runtime_files() == paths
    assert calls.read_text().split() == [f"{package.name}@{package.version}" for package in runtime.PACKAGES]
    assert [path.name for path in paths[0].parent.parent.iterdir()] == [paths[0].parent.name]
    assert "Permission is hereby granted" in runtime.licenses()  # ONNX Runtime's
    assert runtime.licenses().endswith("LICENSE")  # the stand-in for the other package's


def test_a_package_that_is_not_the_pinned_one_is_refused(npm):
    _, archives = npm
    (archives / "onnxruntime-web").write_bytes(archive(replace(runtime.PACKAGES[0], files=("dist/other.mjs",))))
    with pytest.raises(UserError, match="pinned"):
        runtime.runtime_files()
    assert list(runtime.cache_folder().parent.iterdir()) == []


def test_the_error_of_npm_is_reported(npm):
    _, archives = npm
    (archives / "@huggingface-tokenizers").unlink()
    with pytest.raises(UserError, match=r"@huggingface/tokenizers .*404 Not Found"):
        runtime.runtime_files()


def test_a_missing_npm_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(runtime.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UserError, match=r"Node\.js"):
        runtime.runtime_files()


def test_npm_is_found_next_to_python(npm, monkeypatch):
    beside = Path(os.environ["PATH"].split(os.pathsep)[0])
    monkeypatch.setattr(runtime.sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", "/usr/bin-that-is-empty")
    assert runtime._npm() == str(beside / "npm")
