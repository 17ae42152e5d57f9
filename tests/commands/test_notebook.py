"""
docs/learn/transformer.ipynb runs, and its stored outputs are its own (`python tests/execute_notebook.py`). The
assertions in its cells compare with formulas written by hand, and with the translations and alignments of the grammar.
"""

import ast
import importlib
import re
from copy import deepcopy

import nbformat
import pytest
from execute_notebook import NOTEBOOK, execute

STORED = nbformat.read(NOTEBOOK, as_version=4)
CODE = [cell for cell in STORED.cells if cell.cell_type == "code"]


def outputs(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell writes: text, or the kind of a picture."""
    return [output.text if "text" in output else min(output.data) for output in cell.get("outputs", [])]


def test_the_cells_before_the_training_run_and_write_what_is_stored(tmp_path):
    notebook = deepcopy(STORED)
    training = next(index for index, cell in enumerate(notebook.cells) if "## Training" in cell.source)
    del notebook.cells[training:]
    execute(notebook, tmp_path)
    assert list(map(outputs, notebook.cells)) == list(map(outputs, STORED.cells[:training]))


@pytest.mark.slow
def test_all_cells_run_and_write_as_many_texts_and_pictures_as_are_stored(tmp_path):
    notebook = deepcopy(STORED)
    execute(notebook, tmp_path)
    kinds = [[output.output_type for output in cell.get("outputs", [])] for cell in notebook.cells]
    assert kinds == [[output.output_type for output in cell.get("outputs", [])] for cell in STORED.cells]


def test_the_names_that_it_imports_exist():
    source = "\n".join(re.sub(r"^( *)%.*$", r"\1pass", cell.source, flags=re.MULTILINE) for cell in CODE)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert all(hasattr(importlib.import_module(node.module), each.name) for each in node.names), node.module


def test_its_outputs_are_small_of_one_execution_and_of_no_machine():
    assert [cell.execution_count for cell in CODE] == list(range(1, len(CODE) + 1))
    assert NOTEBOOK.stat().st_size < 400_000
    text = "".join(output.get("text", "") for cell in CODE for output in cell.outputs)
    assert not re.search(r"(?<![\w<])/\w|[Ww]arning|\r|\x1b", text)
    assert {output.get("name", "stdout") for cell in CODE for output in cell.outputs} == {"stdout"}
