"""A mistake is answered by one line of pylog, in any session: the lines of docs/spark.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.mistakes import MISTAKES, Place, answer
from tests.support.repeats import only_long, times

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()
SECTION = re.search(r"^## Mistakes, and their lines\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
LINES = dict(re.findall(r"^\| (.+?) \| `(.+)` \|$", SECTION, re.MULTILINE))
HIDE = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
# One of each way to Spark's user; a mistake costs seconds, because Spark's Python process ends with it.
FEW = ("`startingoffset`", "no such topic", "stream: no such topic", "a null in the column `topic`")
# The words of Spark around the text of an error.
BEFORE = (
    r"(?:\s*An exception was thrown from the Python worker\. Please see the stack trace below\.\s+)?"  # over Connect
    r"(?:\[\w+\] |Query \[[^]]*\] terminated with exception: |[\w ]+: |An exception [\w ]+:\s+)*[\w.]+Error: "
)
AFTER = r"\s*(?:SQLSTATE: \w+\s*)*(?:=== Streaming Query ===\n.*)?"


def is_answered(text: str, line: str, path: str) -> bool:
    """Whether the error is what Spark writes, and between that only this line of ours."""
    ours = ".+".join(re.escape(part.replace("PATH", path)) for part in line.split("…"))
    return re.fullmatch(rf"{BEFORE}(?-s:{ours}){AFTER}", text, re.DOTALL) is not None


def test_every_mistake_is_on_the_page():
    assert list(LINES) == list(MISTAKES)
    assert len(LINES) >= 40


@pytest.fixture(scope="module")
def place(spark, tmp_path_factory):
    """In a session without pylog's settings."""
    spark.conf.set(HIDE, "false")
    yield Place(spark, tmp_path_factory.mktemp("mistakes"))
    spark.conf.set(HIDE, "true")


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m in FEW or times(0, 1)])
def test_the_answer_is_one_line(place, mistake):
    text = answer(place, mistake)
    assert is_answered(text, LINES[mistake], place.path), text


@only_long("a JVM of its own")
@pytest.mark.timeout(300)
def test_spark_submit_says_the_same(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("from tests.spark.mistakes import main\nmain()\n")
    variables = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]", script, *FEW],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        cwd=tmp_path,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = {m: text for m, text in found["answers"].items() if not is_answered(text, LINES[m], found["path"])}
    assert (len(found["answers"]), wrong) == (len(FEW), {})
