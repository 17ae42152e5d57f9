"""
Execute docs/learn/transformer.ipynb and store its outputs, which readers on GitHub and the site see:

    python tests/execute_notebook.py
"""

import base64
import io
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "learn" / "transformer.ipynb"
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_COLOURS = 128  # of a picture, which takes less than half of the space of all colours


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Execute the cells in a folder, where their files go. Raises CellExecutionError if one fails."""
    paths = {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython")}
    client = NotebookClient(notebook, record_timing=False, coalesce_streams=True)
    client.execute(cwd=str(folder), env={**os.environ, **paths})


def _smaller(png: str) -> str:
    """A picture, in base64, with fewer colours."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    file = io.BytesIO()
    picture.quantize(_COLOURS, kmeans=2, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
    notebook.metadata = _METADATA
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _smaller(output.data["image/png"])
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
