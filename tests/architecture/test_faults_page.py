"""docs/faults.md has every row, and every test that it names is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = {line.split("|")[1].strip(): line for line in PAGE.splitlines() if re.match(r"\| [STR]\d+ \|", line)}


@cache
def names_in(file: str) -> set[str]:
    """What pytest would collect there: functions, and classes, which Hypothesis makes."""
    names = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if name.startswith(("test_", "Test"))}


def test_every_fault_has_a_row():
    wanted = {"T": 9, "S": 29, "R": 37}
    assert list(ROWS) == [f"{kind}{n + 1}" for kind, count in wanted.items() for n in range(count)]


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_that_a_row_names_exist(row):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ROWS[row])
    assert named, f"{row} has no test"
    for file, name in named:
        assert name in names_in(file), f"{row}: {file} has no {name}"


def test_decisions_that_the_page_leads_to_exist():
    for link in re.findall(r"\]\((decisions/[\w.-]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists()
