"""Every notebook is stored without output, and runs with --long, in a kernel as a reader has it."""

import os
import sys
from itertools import islice
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import execute
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Something of what each prints, so that it is known to have run.
SAYS = {
    "01-quickstart": "3 micro-batches",
    "02-failover": "acknowledged, and each was read once",
    "03-maintenance": "3600 in log and table",
}


def cells(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_output(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # of the notebook machinery, not of ours
@only_long("a kernel and a JVM")
def test_the_notebooks_run_and_show_what_they_say(monkeypatch, tmp_path):
    """All in one kernel, one after the other: most of what each would take is the start of a JVM."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    parts = {path.stem: ["%reset -f", *cells(path)] for path in NOTEBOOKS}
    outputs = iter(execute([source for part in parts.values() for source in part], tmp_path))
    for name, part in parts.items():
        assert SAYS[name] in "".join(islice(outputs, len(part)))
