"""The scripts of notebooks/examples print what docs/examples.md shows, in one session."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.repeats import only_long

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "notebooks" / "examples"
PAGE = (ROOT / "docs" / "examples.md").read_text()
SECTIONS = re.findall(r"^## (.*?)\n(.*?)^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
OF_ANOTHER = "Without Java"  # a process with a classic session can have no other: tests/spark/test_sail.py
NAMED = dict(re.findall(r"^\| \[.*?\]\(#(.*?)\) .*\((?:.*?)/(\w+)\.py\) \|$", PAGE, re.MULTILINE))

pytestmark = pytest.mark.spark


def anchor(title):
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


@only_long("queries of its own")
@pytest.mark.slow
@pytest.mark.parametrize("title", [title for title, _, _ in SECTIONS if title != OF_ANOTHER])
def test_a_script_prints_what_the_page_shows(spark, title, monkeypatch, tmp_path, capfd):
    script = NAMED[anchor(title)]
    if script == "state":
        pytest.importorskip("google.protobuf", reason="PySpark's transformWithState needs protobuf")
    (shown,) = (text for name, _, text in SECTIONS if name == title)
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path)])
    timezone, store = "spark.sql.session.timeZone", "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(timezone), spark.conf.get(store)
    spark.conf.set(timezone, "UTC")
    try:
        runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    finally:
        spark.conf.set(timezone, before[0])
        spark.conf.set(store, before[1])
    assert capfd.readouterr().out.strip() == shown.strip()
