"""Handlers and needs know the type of each request: no field of one is read without mypy knowing that there is one."""

import ast

import pytest

from tests.measures import ROOT

BROKER = ROOT / "replication" / "broker"
HANDLERS = [*sorted((BROKER / "handlers").glob("*.py")), BROKER / "needs.py"]


def nodes(paths, *kinds):
    return [
        (path.name, node) for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)
    ]


def test_no_handler_takes_a_value_of_any_type():
    for name, argument in nodes(HANDLERS, ast.arg):
        kind = argument.annotation and ast.unparse(argument.annotation)
        assert kind != "Any", f"{name}:{argument.lineno}: {argument.arg}"


def test_no_handler_asks_whether_a_request_has_a_field():
    """Settings have their names in requests: one is read by its name."""
    for name, call in nodes(HANDLERS, ast.Call):
        said = ast.unparse(call)
        is_lookup = said.startswith(("getattr(", "hasattr(")) and not said.startswith("getattr(config, ")
        assert not is_lookup, f"{name}:{call.lineno}: {said}"


def test_no_handler_reads_a_field_of_a_request_whose_type_is_not_named():
    for name, attribute in nodes(HANDLERS, ast.Attribute):
        is_untyped = isinstance(attribute.value, ast.Attribute) and attribute.value.attr == "body"
        assert not is_untyped, f"{name}:{attribute.lineno}: {ast.unparse(attribute)}"


@pytest.mark.parametrize("text", ["body: Any", "getattr(body", "hasattr(body"])
def test_no_module_of_a_broker_guesses_at_a_request(text):
    assert [path.name for path in sorted(BROKER.rglob("*.py")) if text in path.read_text()] == []
