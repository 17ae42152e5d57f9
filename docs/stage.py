"""Write the pages of the site to a folder, from the Markdown that GitHub shows; `make docs` then builds the site.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages beside those of docs/, and so do notebooks, with their stored
outputs. Each file of the repository that a page links to becomes a page with its source, so that the link works on
GitHub, on the site and from a disk. Formulas become MathML, which browsers draw without a script.

    python docs/stage.py build/docs
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".js": "javascript", ".sh": "bash", ".diff": "diff"}
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")
SOURCE_PAGE = "---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n# {name}\n\n{body}\n"


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.py", "*.diff", "*.ipynb", "runs", "__pycache__"))
    linked = set()
    for path in [ROOT / name for name in ROOT_PAGES] + sorted([*DOCS.rglob("*.md"), *DOCS.glob("*/*.ipynb")]):
        page, links = staged(path)
        (folder / page_of(path)).write_text(page, encoding="utf-8")
        linked |= links
    while linked:
        path = linked.pop()
        page = folder / page_of(path)
        if path.name in ROOT_PAGES or page.exists() or not path.exists():
            continue  # what does not exist stays a broken link, which the build reports
        children = [child for child in sorted(path.iterdir()) if child.name[0] not in "._"] if path.is_dir() else []
        linked.update(children)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(source_page(path, children), encoding="utf-8")


def staged(path: Path) -> tuple[str, set[Path]]:
    """A page of the repository as a page of the site, and the files that it links to."""
    links = set()

    def site_link(match: re.Match) -> str:
        target = Path(os.path.normpath(path.parent / match[1]))
        links.add(target)
        return os.path.relpath(page_of(target), Path(page_of(path)).parent)

    text = path.read_text(encoding="utf-8")
    parts = CODE.split(text if path.suffix == ".md" else from_notebook(json.loads(text)))
    for index in range(0, len(parts), 2):  # every second part is code
        text = LINK.sub(site_link, parts[index])
        text = re.sub(r"\$\$(.+?)\$\$", lambda match: convert(match[1], display="block"), text, flags=re.DOTALL)
        parts[index] = re.sub(r"\$([^$\n]+)\$", lambda match: convert(match[1]), text)
    return "".join(parts), links


def from_notebook(notebook: dict) -> str:
    """A notebook as Markdown: its text, code, and the text and pictures that the code has written."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append(f"``` {{.text .output}}\n{''.join(output['text']).rstrip()}\n```")
            else:
                picture = "".join(output["data"]["image/png"]).replace("\n", "")
                parts.append(f'<img alt="The picture that this code draws" src="data:image/png;base64,{picture}">')
    return "\n\n".join(parts)


def page_of(path: Path) -> str:
    """Where the site has a file of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    is_source = not name.startswith("docs/") or path.suffix in LANGUAGES
    return f"source/{name}.md" if is_source else name.removeprefix("docs/").replace(".ipynb", ".md")


def source_page(path: Path, children: list[Path]) -> str:
    if path.is_dir():
        body = "\n".join(f"- [{child.name}]({path.name}/{child.name}.md)" for child in children)
    else:
        body = f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8').rstrip()}\n````"
    return SOURCE_PAGE.format(name=path.relative_to(ROOT).as_posix(), body=body)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
