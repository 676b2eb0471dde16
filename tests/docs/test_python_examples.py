"""The Python of README.md, docs/spark.md and docs/client.md, and every notebook, runs from top to bottom.

All in one process, one after the other: most of what each would take is the start of a JVM.
"""

import os
import re
import sys
from itertools import islice
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import logstore
from tests.docs.test_readme import blocks

ROOT = Path(__file__).parents[2]
SPARK = (ROOT / "docs" / "spark.md").read_text()  # goes on where README.md ends, with the same session
CLIENT = (ROOT / "docs" / "client.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Something of what each prints, so that it is known to have run.
SAYS = {"01-quickstart": "3 micro-batches", "02-maintenance": "3600 in log and table"}


def cells(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Run these cells in an interpreter of their own; what each printed."""

    def run(sources):
        notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
        client = NotebookClient(
            notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}, kernel_name="python3"
        )
        client.create_kernel_manager().kernel_cmd = [
            sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"
        ]  # fmt: skip
        client.execute()
        return ["".join(str(output.get("text", "")) for output in cell["outputs"]) for cell in notebook.cells]

    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return run


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")  # of the notebook machinery, not of ours
def test_the_pages_and_the_notebooks_run_and_show_what_they_say(execute, tmp_path):
    pages = [*blocks("python"), *blocks("python", SPARK), "spark.stop()", *blocks("python", CLIENT)]
    parts = {"pages": pages} | {path.stem: ["%reset -f", *cells(path)] for path in NOTEBOOKS}
    outputs = iter(execute([source for part in parts.values() for source in part]))
    shown = {name: "".join(islice(outputs, len(part))) for name, part in parts.items()}

    of_pages = shown["pages"]
    assert '{"what":"tea","n":3}' in of_pages
    assert re.search(r"\| ?Ada\| +2\|", of_pages)
    assert "2 greetings in the cluster" in of_pages
    assert "4 orders in table and log" in of_pages
    assert "100 clicks acknowledged" in of_pages
    assert "100 clicks read" in of_pages
    assert "b'Cyd'" in of_pages
    with logstore.open(tmp_path / "data") as store:
        values = store.read("thanks", partition=0).read_all()["value"].to_pylist()
    assert values.count(b"thank you, Ada") == 2
    for path in NOTEBOOKS:
        assert SAYS[path.stem] in shown[path.stem]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_output(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
