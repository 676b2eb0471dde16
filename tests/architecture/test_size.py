"""Files and functions that a person can hold in mind. A limit here is a question: split it by noun?"""

import ast
from functools import cache
from pathlib import Path

from tests.measures import is_generated

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    p
    for package in ("logstore", "replication", "datasource", "pyspark_pylog", "pytest_pylog")
    for p in (ROOT / package).rglob("*.py")
    if not is_generated(p)
)

FILE_LINES_MAX = 450  # of what a person writes
FUNCTION_LINES_MAX = 70
CLASS_METHODS_MAX = 25


TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in SOURCES}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(TEXTS[name])


def test_a_file_its_classes_and_functions_fit_in_mind():
    for name, text in TEXTS.items():
        assert len(text.splitlines()) <= FILE_LINES_MAX, f"{name}: split it by noun"
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= FUNCTION_LINES_MAX, f"{name}: {node.name} has {lines} lines"
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                assert methods <= CLASS_METHODS_MAX, f"{name}: {node.name} has {methods} methods"


def test_what_a_constructor_makes_it_makes_once():
    for name in TEXTS:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                made = [
                    ast.unparse(step.targets[0])
                    for step in node.body
                    if isinstance(step, ast.Assign) and isinstance(step.value, ast.Call)
                ]
                assert sorted(made) == sorted(set(made)), name


def test_nothing_is_left_for_later():
    for name, text in TEXTS.items():
        for mark in ("TODO", "FIXME", "XXX", "NotImplementedError", "pragma: no cover"):
            assert mark not in text, f"{name}: {mark}"
