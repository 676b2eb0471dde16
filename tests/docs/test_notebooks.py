"""Every notebook runs from top to bottom."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]

# Something of what each prints, so that it is known to have run.
SAYS = {"01-quickstart": "3 micro-batches", "02-maintenance": "3600 in log and table"}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the notebook machinery, not of ours
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}, kernel_name="python3"
    )
    client.create_kernel_manager().kernel_cmd = [
        sys.executable,
        "-m",
        "ipykernel_launcher",
        "-f",
        "{connection_file}",
    ]
    client.execute()
    assert SAYS[path.stem] in str([cell.get("outputs") for cell in notebook.cells])


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_output(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
