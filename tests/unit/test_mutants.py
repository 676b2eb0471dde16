"""`make mutants`: every change is one, is undone, and changes what it says."""

import ast
from textwrap import dedent

from tests.mutants import ROOT, TARGETS, changes

SOURCE = dedent('''
    """A module."""
    LIMIT: int = 3

    def step(state, event):
        """Two effects."""
        assert state.epoch >= 0, "we are wrong"
        if event.offset < state.end and not state.is_over:
            log.note(event)
            return replace(state, end=event.offset, seen=True), (Moved(event.offset), Told())
        return state, ()
''')


def test_every_change_is_one_and_is_undone():
    plain = ast.unparse(ast.parse(SOURCE))
    found = [(what, ast.unparse(tree)) for tree, _, what in changes(SOURCE)]
    assert len({text for _, text in found}) == len(found)
    assert plain not in {text for _, text in found}
    assert ast.unparse(list(changes(SOURCE))[-1][0]) == plain, "the last one is undone, too"
    assert [what for what, _ in found].count("item left out") == 3
    assert {"3 -> 4", "Lt -> LtE", "And -> Or", "condition left out", "not left out", "condition -> True",
            "condition -> False", "call left out", "end is not replaced", "True -> False"} <= {
        what for what, _ in found
    }  # fmt: skip
    assert all('"we are wrong"' in text or "we are wrong" in text for _, text in found)


def test_what_is_changed_and_what_tests_it_are_there():
    for module, tests in TARGETS.items():
        assert all((ROOT / each.split("::")[0]).exists() for each in (module, *tests)), module
