"""Writes a page as a folder for any static server, or as a single file."""

import base64
import gzip
import hashlib
import json
import re
import shutil
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import UserError

PAGE, STYLE, SCRIPT, MODEL = "index.html", "page.css", "page.js", "model.json"
_OFFLINE = "offline.js"  # the service worker
_WORKER = re.compile(
    r'^const version = "[0-9a-f]{10}";\nconst needed = (\[.*\]);\nconst others = (\[.*\]);', re.MULTILINE
)
_OF_GITHUB_PAGES = (".nojekyll", "CNAME")  # which its users put beside the page
_ICON, _TOUCH_ICON = "icon.svg", "icon.png"  # the second one without round corners, which devices cut themselves
# The modules of the page's own script, each before those that import from it.
_SCRIPTS = ("text.js", "wordings.js", "strings.js", "models.js", "service.js", SCRIPT)
_EMBEDDED = '<script id="files" type="application/json">'
_LINK_TO_STYLE, _LINK_TO_SCRIPT = f'<link rel="stylesheet" href="{STYLE}">', f'<script type="module" src="{SCRIPT}">'


def page_file(name: str) -> str:
    """A file of the page. Its script is one file with all modules, since a page opened from disk cannot import any."""
    text = "\n".join(_source(file).decode() for file in (_SCRIPTS if name == SCRIPT else (name,)))
    return re.sub(r"^import .*\n|^export ", "", text, flags=re.MULTILINE) if name == SCRIPT else text


def write_folder(parts: Path, described: dict[str, Any], folder: Path) -> None:
    """
    Write a page to a new folder. Names contain a hash of the content, so that no cache mixes two exports; only
    index.html and the service worker keep theirs. The files that the page's code reads are compressed, and it unpacks
    them, so that no server need compress anything.

    Args:
        parts: the folder with the files that the page's code reads.
        described: the content of model.json, with the paths of these files in `parts`.
    """
    folder.mkdir()
    described = deepcopy(described)
    for part in _parts_of(described):
        paths = {name: _write(folder, f"{path}.gz", _packed(parts / path)) for name, path in part["files"].items()}
        part |= {"files": paths, "bytes": sum((folder / path).stat().st_size for path in paths.values())}
    own = {name: _write(folder, name, page_file(name).encode()) for name in (STYLE, SCRIPT)}
    own |= {name: _write(folder, name, _source(name)) for name in (_ICON, _TOUCH_ICON)}
    model, manifest = (
        _write(folder, name, json.dumps(content, ensure_ascii=False, indent=1).encode())
        for name, content in ((MODEL, described), ("manifest.json", _manifest(described, own)))
    )
    shared, first, *others = ([*part["files"].values()] for part in _parts_of(described))
    wasm = described["shared"]["files"][described["shared"]["wasm"]]
    links = [f'<link rel="preload" as="fetch" crossorigin href="{path}">' for path in (model, wasm)]
    links += [f'<link rel="manifest" href="{manifest}">', f'<link rel="apple-touch-icon" href="{own[_TOUCH_ICON]}">']
    replaced = {
        f'data-model="{MODEL}"': f'data-model="{model}"',
        _LINK_TO_STYLE: "\n".join([*links, _LINK_TO_STYLE.replace(STYLE, own[STYLE])]),
        _LINK_TO_SCRIPT: _LINK_TO_SCRIPT.replace(SCRIPT, own[SCRIPT]),
        "img-src data:; connect-src 'self'": "img-src 'self' data:; connect-src 'self'; manifest-src 'self'",
    }
    index = _replaced(page_file(PAGE), replaced)
    (folder / PAGE).write_text(index, encoding="utf-8")
    kept = {
        "needed": [*own.values(), model, manifest, *shared, *first],
        "others": [name for names in others for name in names],
    }
    lines = {f"const {name} = [];": f"const {name} = {json.dumps(names)};" for name, names in kept.items()}
    lines['const version = "";'] = f'const version = "{_hash(json.dumps([index, kept]).encode())}";'
    (folder / _OFFLINE).write_text(_replaced(page_file(_OFFLINE), lines), encoding="utf-8")


def write_one_file(parts: Path, described: dict[str, Any], path: Path) -> None:
    """Write a page as one file. The arguments are those of `write_folder`."""
    packed = {file: _packed(parts / file) for part in _parts_of(described) for file in part["files"].values()}
    packed[MODEL] = gzip.compress(json.dumps(described).encode(), mtime=0)
    embedded = json.dumps({file: base64.b64encode(content).decode() for file, content in packed.items()})
    replaced = {
        _LINK_TO_STYLE: f"<style>\n{page_file(STYLE)}</style>",
        f"{_LINK_TO_SCRIPT}</script>": (
            f'{_EMBEDDED}{embedded}</script>\n<script type="module">\n{page_file(SCRIPT)}</script>'
        ),
        "script-src 'self'": "script-src 'unsafe-inline'",
        "style-src 'self'": "style-src 'unsafe-inline'",
        "connect-src 'self'; ": "",
    }
    path.write_text(_replaced(page_file(PAGE), replaced), encoding="utf-8")


def check_is_page(path: Path) -> None:
    """Raise UserError unless all of a folder, or a file, is a page that was written here."""
    if path.is_file():
        strange = [] if _EMBEDDED in path.read_text(encoding="utf-8", errors="replace") else [path]
    else:
        written = {path / name for name in (*_written_names(path / _OFFLINE), *_OF_GITHUB_PAGES)}
        strange = [file for file in sorted(path.rglob("*")) if not file.is_dir() and file not in written]
    if strange or path.is_symlink():
        found = path.name if not strange else strange[0]
        raise UserError(f"--overwrite: {found} is not of a page that scratch export web wrote; choose another name")


def _written_names(worker: Path) -> list[str]:
    """The files of a page, by its service worker; none if that was not written here."""
    lists = _WORKER.search(worker.read_text(encoding="utf-8", errors="replace") if worker.is_file() else "")
    return [PAGE, _OFFLINE, *(name for group in lists.groups() for name in json.loads(group))] if lists else []


def keep_files_of_github_pages(old: Path, new: Path) -> None:
    """Copy the files with which GitHub Pages serves a page's folder to the folder that replaces it."""
    for name in _OF_GITHUB_PAGES:
        if (old / name).is_file():
            shutil.copy(old / name, new)


def read_described(folder: Path) -> dict[str, Any]:
    """
    Read model.json from a page's folder: "shared" for all models, and the "directions", each of which is a model (see
    `describe_model`) that may have a "better" one.
    """
    (path,) = folder.glob(_named(MODEL, "*"))
    return json.loads(path.read_text(encoding="utf-8"))


def _parts_of(described: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of model.json that name files: what the models share, and each model, beginning with the first."""
    models = [model for direction in described["directions"] for model in (direction, direction.get("better")) if model]
    return [described["shared"], *models]


def _manifest(described: dict[str, Any], icons: dict[str, str]) -> dict[str, Any]:
    """The manifest with which browsers install the page as an app."""
    directions = described["directions"]
    sides = dict.fromkeys(side for direction in directions for side in direction["sides"])
    return {
        "name": directions[0]["title"] if len(directions) == 1 else " and ".join(sides),
        "start_url": "./",
        "display": "standalone",
        "icons": [
            {"src": icons[_ICON], "type": "image/svg+xml", "sizes": "any"},
            {"src": icons[_TOUCH_ICON], "type": "image/png", "sizes": "512x512", "purpose": "maskable"},
        ],
    }


def _source(name: str) -> bytes:
    return (files(__package__) / "page" / name).read_bytes()


def _packed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), mtime=0)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:10]


def _named(name: str, hash: str) -> str:
    """A file's name with a hash: page-3f2a.css."""
    path = Path(name)
    stem, dot, rest = path.name.partition(".")
    return (path.parent / f"{stem}-{hash}{dot}{rest}").as_posix()


def _write(folder: Path, name: str, content: bytes) -> str:
    """Write a file under a name with its hash, which is returned."""
    name = _named(name, _hash(content))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return name


def _replaced(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    return text
