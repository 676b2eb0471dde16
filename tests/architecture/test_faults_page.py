"""docs/faults.md has a section for every fault, and every test that a section names is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
SECTIONS = dict(re.findall(r"^### .*?([STR]\d+): (.*?)(?=^##)", PAGE, re.DOTALL | re.MULTILINE))


@cache
def names_in(file: str) -> set[str]:
    """The names that pytest collects there: functions, and classes, which Hypothesis makes."""
    names = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if name.startswith(("test_", "Test"))}


def test_every_fault_has_a_section():
    wanted = {"T": 18, "S": 36, "R": 50}
    assert list(SECTIONS) == [f"{kind}{n + 1}" for kind, count in wanted.items() for n in range(count)]
    told = re.findall(r" ([A-Z])1 to \1(\d+)", PAGE)
    assert told == [(kind, str(count)) for kind, count in wanted.items()]


@pytest.mark.parametrize("fault", SECTIONS)
def test_a_section_says_what_happens_and_names_tests_that_exist(fault):
    section = SECTIONS[fault]
    assert section.index("*Fault.*") < section.index("*Handling.*")
    assert f'<a id="{fault.lower()}"></a>{fault}: ' in PAGE
    named = re.findall(r"^- `(tests/[\w/]+\.py)::(\w+)`$", section, re.MULTILINE)
    assert named, f"{fault} has no test"
    assert len(named) == section.count("\n- ")
    for file, name in named:
        assert name in names_in(file), f"{fault}: {file} has no {name}"
