"""Makes the site from the Markdown that GitHub shows (mkdocs.yml lists the pages).

The files of `ROOT_PAGES` become pages. Each file outside docs/ that a page links to becomes a page with its source, so
that a link to a module works on GitHub, on the site and from a disk. Formulas become MathML, which browsers draw
without a script.
"""

import html
import os
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)")
SOURCE = "---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n# {name}\n\n{body}\n"


def on_files(files, config):
    """Add the pages that are not in docs/."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    linked = set()
    for file in files.documentation_pages():
        here = _original(file.src_uri)
        linked |= {_target(here, link) for link in LINK.findall(file.content_string)}
    while linked:
        path = linked.pop()
        page = _page(path)
        if not page.startswith("source/") or not path.exists() or files.get_file_from_path(page):
            continue
        children = sorted(each for each in path.iterdir() if not each.name.startswith(("_", "."))) if path.is_dir() else []
        linked.update(children)
        files.append(File.generated(config, page, content=_source(path, children)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links to files of the repository at their pages."""
    here = _original(page.file.src_uri)
    if page.file.src_uri.startswith("source/"):
        return markdown

    def site_link(match):
        return os.path.relpath(_page(_target(here, match[1])), Path(page.file.src_uri).parent)

    return LINK.sub(site_link, markdown)


def on_page_content(content, page, config, files):
    """Turn what arithmatex marked into MathML."""

    def formula(match):
        text = html.unescape(match["text"])
        return convert(text, display="block" if match["kind"] == "div" else "inline")

    pattern = r'<(?P<kind>div|span) class="arithmatex">\\[\[(](?P<text>.*?)\\[\])]</(?P=kind)>'
    return re.sub(pattern, formula, content, flags=re.DOTALL)


def _original(page: str) -> Path:
    """The file of the repository that a page of the site is made from."""
    for name, root_page in ROOT_PAGES.items():
        if page == root_page:
            return ROOT / name
    return ROOT / "docs" / page


def _target(here: Path, link: str) -> Path:
    return Path(os.path.normpath(here.parent / link))


def _page(path: Path) -> str:
    """The path, within the site, of the page or picture for a file of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"source/{name}.md"


def _source(path: Path, children: list[Path]) -> str:
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        body = "\n".join(f"- [{each.name}]({path.name}/{each.name}.md)" for each in children)
    else:
        language = {".py": "python", ".yaml": "yaml", ".js": "javascript", ".sh": "bash"}.get(path.suffix, "text")
        body = f"````{language}\n{path.read_text(encoding='utf-8').rstrip()}\n````"
    return SOURCE.format(name=name, body=body)
