"""A mistake is answered by one line of pylog, in any session: the lines of docs/spark.md.

With --long each of them is made in one kind of session; with --soak all are made in all, and by spark-submit.
"""

import json
import re
import subprocess
from pathlib import Path
from textwrap import dedent

import pyspark
import pytest

from tests.spark import mistakes
from tests.spark.mistakes import MISTAKES, Place, answer
from tests.support.notebooks import outputs
from tests.support.repeats import only_long, soaked

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PAGE = (ROOT / "docs" / "spark.md").read_text()
SECTION = re.search(r"^## Mistakes, and their lines\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
LINES = dict(re.findall(r"^\| (.+?) \| `(.+)` \|$", SECTION, re.MULTILINE))
# Spark's own log, without Java's stack below an error of pylog.
QUIET = ["--driver-java-options", f"-Dlog4j2.configurationFile=file:{ROOT}/conf/log4j2.properties"]
HIDE = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
# One of each way to Spark's user; a mistake costs seconds, because Spark's Python process ends with it.
FEW = ("`startingoffset`", "no such topic", "stream: no such topic", "a null in the column `topic`")
# The words of Spark around the text of an error.
BEFORE = (
    r"(?:\s*An exception was thrown from the Python worker\. Please see the stack trace below\.\s+)?"  # over Connect
    r"(?:\[\w+\] |Query \[[^]]*\] terminated with exception: |[\w ]+: |An exception [\w ]+:\s+)*[\w.]+Error: "
)
FRAME = re.compile(
    rf"{re.escape(str(ROOT))}/(?:datasource|logstore|replication)/\S+\.py|/pyspark/(?:sql/)?worker\S*\.py"
)
AFTER = r"\s*(?:SQLSTATE: \w+\s*)*(?:=== Streaming Query ===\n.*)?"


def is_answered(text: str, line: str, path: str) -> bool:
    """Whether the error is what Spark writes, and between that only this line of ours."""
    ours = ".+".join(re.escape(part.replace("PATH", path)) for part in line.split("…"))
    return re.fullmatch(rf"{BEFORE}(?-s:{ours}){AFTER}", text, re.DOTALL) is not None


def made_in(kind: str) -> list[str]:
    """Return the mistakes that are made in this kind of session: each is made in one of them, with --soak in all."""
    kinds = ("python", "notebook", "connect")
    return list(LINES) if soaked(0, 1) else list(LINES)[kinds.index(kind) :: len(kinds)]


def check(path: str, answers: dict[str, str], around: str, kind: str) -> None:
    """Raise AssertionError unless each mistake got its line, and nothing around the errors is of our code."""
    wrong = {mistake: text for mistake, text in answers.items() if not is_answered(text, LINES[mistake], path)}
    assert wrong == {}
    assert list(answers) == made_in(kind)
    assert FRAME.findall(around) == []


def test_every_mistake_is_on_the_page():
    assert list(LINES) == list(MISTAKES)
    assert len(LINES) >= 40


@pytest.fixture(scope="module")
def place(spark, tmp_path_factory):
    """In a session without pylog's settings."""
    spark.conf.set(HIDE, "false")
    yield Place(spark, tmp_path_factory.mktemp("mistakes"))
    spark.conf.set(HIDE, "true")


@pytest.mark.parametrize("mistake", FEW)
def test_the_answer_is_one_line(place, mistake):
    text = answer(place, mistake)
    assert is_answered(text, LINES[mistake], place.path), text


@only_long("JVMs for many mistakes")
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "start"),
    [("python", ["python"]), ("spark-submit", [SUBMIT, "--master", "local[2]", *QUIET])],
    ids=["python", "spark-submit"],
)
def test_a_script_sees_one_line_for_each(kind, start, activated, tmp_path):
    if kind == "spark-submit" and not soaked(0, 1):
        pytest.skip("one more JVM: with --soak")
    command = [*start, mistakes.__file__, *made_in(kind)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    check(found["path"], found["answers"], done.stderr, kind)
    assert ("\tat org.apache.spark." in done.stderr) == (kind == "python")


@only_long("a kernel and a JVM for many mistakes")
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.filterwarnings("default")  # of the notebook machinery, not of ours
def test_a_notebook_shows_one_line_for_each(activated, tmp_path):
    (tmp_path / "place").mkdir()
    first = f"""
        from pathlib import Path
        from pyspark.sql import SparkSession
        from tests.spark.mistakes import MISTAKES, Place
        place = Place(SparkSession.builder.getOrCreate(), Path({str(tmp_path / "place")!r}))
    """
    made = made_in("notebook")
    _, *cells = outputs([dedent(first), *(f"MISTAKES[{m!r}](place)" for m in made)], tmp_path, allow_errors=True)
    answers, around = {}, []
    for mistake, shown in zip(made, cells, strict=True):
        *logged, error = shown
        answers[mistake] = error.get("evalue", "")
        assert re.sub(r"\x1b\[[\d;]*m", "", error["traceback"][-1]).endswith(
            answers[mistake]
        )  # below the cell's own code
        around += [each.get("text") or "\n".join(each["traceback"]) for each in shown]
        assert not [each for each in logged if each["output_type"] == "error"]
    check(str(tmp_path / "place" / "log"), answers, "\n".join(around), "notebook")
