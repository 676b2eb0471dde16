"""The page of examples; tests/spark/test_example_scripts.py runs the scripts."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_links_to_every_script():
    page = (ROOT / "docs" / "examples.md").read_text()
    scripts = [path.name for path in (ROOT / "notebooks" / "examples").glob("*.py")]
    assert scripts
    assert [name for name in scripts if f"](../notebooks/examples/{name})" not in page] == []


def test_the_page_of_sail_shows_lines_of_its_script():
    page, script = (ROOT / "docs" / "sail.md").read_text(), (ROOT / "notebooks" / "examples" / "no_jvm.py").read_text()
    (shown,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert shown in script
