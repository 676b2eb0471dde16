"""The Python of the pages, and every notebook, in a kernel as a reader has it: with --long.

All in one, one after the other: most of what each would take is the start of a JVM. tests/spark/test_examples.py, where
they always run, looks at their output.
"""

import os
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.spark.test_examples import NOTEBOOKS, PAGES, SAYS, cells, check_pages
from tests.support.notebooks import execute
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(monkeypatch):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # of the notebook machinery, not of ours
@only_long("a kernel and a JVM")
def test_the_pages_and_the_notebooks_run_and_show_what_they_say(environment, tmp_path):
    parts = {"pages": PAGES} | {path.stem: ["%reset -f", *cells(path)] for path in NOTEBOOKS}
    outputs = iter(execute([source for part in parts.values() for source in part], tmp_path))
    shown = {name: "".join(islice(outputs, len(part))) for name, part in parts.items()}
    check_pages(shown["pages"], tmp_path)
    for path in NOTEBOOKS:
        assert SAYS[path.stem] in shown[path.stem]
