"""The Python of README.md, docs/spark.md and docs/client.md, and every notebook, runs and shows what it says.

Here in the session of the other tests; each notebook in a kernel of its own: tests/docs/test_python_examples.py.
"""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import nbformat
import pytest

import logstore
from tests.docs.test_readme import blocks
from tests.support.repeats import only_long, times

ROOT = Path(__file__).parents[2]
SPARK = (ROOT / "docs" / "spark.md").read_text()  # goes on where README.md ends, with the same session
TYPED = (ROOT / "docs" / "typed.md").read_text()
CLIENT = (ROOT / "docs" / "client.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# They do much of what the pages do. tests/docs/test_python_examples.py runs them, too.
RUN = [path for path in NOTEBOOKS if path.stem != "02-failover"][: times(0, 2)]
PAGES = [*blocks("python"), *blocks("python", SPARK), "spark.stop()", *blocks("python", CLIENT)]

# Something of what each prints, so that it is known to have run.
SAYS = {
    "01-quickstart": "3 micro-batches",
    "02-failover": "acknowledged, and each was read once",
    "03-maintenance": "3600 in log and table",
}


def cells(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def check_pages(shown, directory):
    assert '{"what":"tea","n":3}' in shown
    assert re.search(r"\| ?Ada\| +2\|", shown)
    assert re.search(r"\| ?Ada\| ?12\.50\|", shown)
    assert re.search(r"\| ?Cyd\| *3\.00\|", shown)
    assert "2 greetings in the cluster" in shown
    assert "['orders', 'thanks'] are views" in shown
    assert re.search(r"\| ?thanks in SQL\| +\d", shown)
    assert re.search(r"^4 orders$", shown, re.MULTILINE)
    assert re.search(r"\| ?ada\| *London\|", shown)
    assert "4 orders in table and log" in shown
    assert "0 orders behind" in shown
    assert re.search(r"^reports +stopped +\d+ +\S+/data +orders +0 +0.0 +0 +0 ", shown, re.MULTILINE)
    assert re.search(r"^\{'orders': \{.*\}\} by partition, as JSON$", shown, re.MULTILINE)
    assert "100 clicks acknowledged" in shown
    assert "100 clicks read" in shown
    assert "[{'_offset': 0, 'pears': 3}]" in shown
    assert "b'Cyd'" in shown
    with logstore.open(directory / "data") as store:
        values = store.read("thanks", partition=0).read_all()["value"].to_pylist()
    assert values.count(b"thank you, Ada") == 2
    assert b"thanks in SQL" in values
    with logstore.open(directory / "data") as store:
        counts = store.read("counts").read_all().select(["key", "value"]).to_pylist()
    assert {"key": b"Ada", "value": b'{"who":"Ada","count":2}'} in counts


def shown_by(sources):
    """The output of these, one after the other."""
    names = {"__name__": "__main__"}
    with redirect_stdout(io.StringIO()) as shown:
        for source in sources:
            exec(source, names)
    return shown.getvalue()


@only_long("a session for the pages")
@pytest.mark.spark
def test_the_pages_run_and_show_what_they_say(script):
    check_pages(shown_by(PAGES), script)


@only_long("streams of a page")
@pytest.mark.spark
def test_the_page_of_typed_topics_ends_with_a_dead_letter(script):
    shown = shown_by(blocks("python", TYPED))
    assert re.search(r"\| ?Ada\| ?12\.50\|", shown)
    assert re.search(r"\| ?Cyd\| +3\.00\| +0\|", shown)
    assert re.search(r"\| ?Cyd\| +3\.00\|$", shown, re.MULTILINE)
    assert "1 record was dropped" in shown
    assert "1 dead letter of its own" in shown
    assert re.search(r'"Bob", "amount": "a lot"}\|value: amount: "a lot" is no decimal', shown)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")  # of plots that nobody sees
@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(path, script, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert SAYS[path.stem] in shown_by(cells(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_output(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
