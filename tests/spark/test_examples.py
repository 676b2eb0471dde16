"""The Python of README.md, docs/spark.md and docs/client.md runs and shows what it says, in the session of other tests.

Notebooks run in tests/docs/test_notebooks.py.
"""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import logstore
from tests.docs.test_readme import blocks
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[2]
SPARK = (ROOT / "docs" / "spark.md").read_text()  # goes on where README.md ends, with the same session
TYPED = (ROOT / "docs" / "typed.md").read_text()
CLIENT = (ROOT / "docs" / "client.md").read_text()
PAGES = [*blocks("python"), *blocks("python", SPARK), "spark.stop()", *blocks("python", CLIENT)]


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
