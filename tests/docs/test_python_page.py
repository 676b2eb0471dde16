"""docs/python.md: its Python runs, and prints what it is meant to."""

import re
from pathlib import Path

from tests.spark.test_examples import shown_by

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


def test_each_library_reads_and_appends_as_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = shown_by(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)).splitlines()
    assert shown == [
        "{b'Ada': 3, b'Bob': 2, b'Cyd': 1}",
        "[('Ada', 3), ('Bob', 2), ('Cyd', 1)]",
        "[('Ada', 10), ('Bob', 7), ('Cyd', 4)]",
        "[{'partition': 0, 'key': b'ada', 'value': b'London'}]",
        "[{'user': 'Ada', 'amount': Decimal('12.50')}, {'user': 'Bob', 'amount': Decimal('3.00')}]",
        "row 0: amount: 1.5 does not fit int",
        "7 records of the last hour",
        "7 and what follows",
        "[0, 1] have an offset for it, or None",
        "TopicDescription('orders', partitions=2, config={'retention.ms': '604800000'})",
    ]
