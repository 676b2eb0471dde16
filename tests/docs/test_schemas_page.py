"""docs/schemas.md: its Python runs, and prints what it is meant to."""

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "schemas.md").read_text()


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "docs/schemas.md", "exec"), {})
    subjects, text, *rest = printed.getvalue().splitlines()
    assert subjects == "['orders-key', 'orders-value']"
    assert '"amount":{"type":["string","number","null"],"x-spark-type":"decimal(10,2)"}' in text
    *rest, refusal, without_id = rest
    events = ["[{'user': 'Ada'}]", "[{'user': 'Bob'}]"]
    assert rest == ["True", "2", "[1, 2] ['orders-key', 'orders-value', 'refunds-value']", *events]
    assert refusal.startswith(
        "subject 'visits-value', level BACKWARD: it cannot read version 2: user: string is no bigint"
    )
    assert without_id.startswith("row 0: its value has no schema id: its first byte is not 0")
