"""docs/avro.md: its Python runs, and prints what it is meant to."""

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "avro.md").read_text()


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [source] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "docs/avro.md", "exec"), {})
    text, rows = printed.getvalue().splitlines()
    assert '"logicalType":"decimal","precision":10,"scale":2' in text
    assert rows == "[{'user': 'Ada', 'price': Decimal('12.50')}, {'user': 'Bob', 'price': None}]"
