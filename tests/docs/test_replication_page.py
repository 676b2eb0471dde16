"""docs/replication.md: its tables name the events and effects of the machines."""

import re
from pathlib import Path
from typing import get_args

from replication.controller.machine import events as controller
from replication.coordinators.groups import kinds
from replication.coordinators.transactions.machine import events as transactions
from replication.replica.machine import follower, isr

PAGE = (Path(__file__).parents[2] / "docs" / "replication.md").read_text()


def names(union) -> set[str]:
    return {kind.__name__ for kind in get_args(union)}


def named(section: str, table: str) -> set[str]:
    """The names in the first column of a section's table."""
    text = re.search(rf"^## {section}.*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[0]
    rows = re.search(rf"^\| {table} \|.*\n((?:\|.*\n)+)", text, re.MULTILINE)[1].splitlines()[1:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_events_and_effects_of_a_leader_are_all_there():
    assert named("A leader, per partition", "event") == names(isr.Event)
    assert named("A leader, per partition", "effect") == names(isr.Effect)


def test_the_effects_of_a_follower_are_all_there():
    assert named("A follower, per partition", "effect") == names(follower.Effect)


def test_the_events_of_the_controller_are_all_there():
    assert named("The controller", "event") == names(controller.Event)


def test_the_events_of_a_group_are_all_there():
    assert named("A group", "event") == names(kinds.Event)


def test_the_events_and_effects_of_a_transaction_are_all_there():
    assert named("A transaction", "event") == names(transactions.Event)
    assert named("A transaction", "effect") == names(transactions.Effect)
