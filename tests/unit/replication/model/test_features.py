"""Which updates of a feature are refused: in the words that a Kafka 4.4 was recorded to answer, where it has them."""

import re
from pathlib import Path

import pytest

from replication.model.features import (
    NO_LEVELS,
    PYLOG_VERSION,
    SUPPORTED,
    Finalized,
    Levels,
    Update,
    refusal_to_join,
    refusal_to_update,
)

OWN = {PYLOG_VERSION: Levels(0, 3), "group.version": Levels(0, 1)}
NOW = {PYLOG_VERSION: 1, "group.version": 1}
SAME = {1: Levels(0, 3), 2: Levels(1, 3)}


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (Update("nope", 1), "This broker does not support this feature."),
        (Update("group.version", 9), "This broker only supports versions 0-1."),
        (Update("group.version", -1), "A feature version cannot be less than 0."),
        (Update("group.version", 1, is_upgrade=None), "The controller does not support the given upgrade type."),
        (Update(PYLOG_VERSION, 2, is_upgrade=False), "Can't downgrade to a newer version."),
        (Update(PYLOG_VERSION, 0), "Can't downgrade the version of this feature: a level that was raised stays."),
        (
            Update(PYLOG_VERSION, 0, is_upgrade=False),
            "Can't downgrade the version of this feature: a level that was raised stays.",
        ),
    ],
)
def test_an_update_that_is_refused_says_why(update, reason):
    expected = f"Invalid update version {update.level} for feature {update.feature}. {reason}"
    assert refusal_to_update(update, NOW, OWN, SAME) == expected


@pytest.mark.parametrize(
    "update",
    [
        Update(PYLOG_VERSION, 1),
        Update(PYLOG_VERSION, 1, is_upgrade=False),
        Update(PYLOG_VERSION, 2),
        Update(PYLOG_VERSION, 3),
        Update("group.version", 1),
    ],
)
def test_an_update_that_all_support_is_done(update):
    assert refusal_to_update(update, NOW, OWN, SAME) is None


def test_every_live_broker_that_does_not_support_the_level_is_named():
    brokers = {5: NO_LEVELS, 1: Levels(0, 3), 3: Levels(0, 1)}
    assert refusal_to_update(Update(PYLOG_VERSION, 2), NOW, OWN, brokers) == (
        "Invalid update version 2 for feature pylog.version. Broker 3 only supports versions 0-1. "
        "Broker 5 does not support this feature."
    )
    assert refusal_to_update(Update("group.version", 1), NOW, OWN, brokers) is None


def test_a_broker_that_is_too_old_or_too_new_is_told_both_levels_and_what_to_do():
    assert refusal_to_join(3, Levels(0, 1), 1) is None
    assert refusal_to_join(3, Levels(0, 1), 2) == (
        "broker 3 supports pylog.version 0 to 1, and the cluster is at level 2: "
        "install the release with which it was raised, or a later one"
    )
    assert refusal_to_join(3, Levels(2, 4), 1) == (
        "broker 3 supports pylog.version 2 to 4, and the cluster is at level 1: "
        "start an earlier release first, and raise the level with `pylog features upgrade --level 2`"
    )


def test_this_release_supports_what_the_pages_say_and_a_cluster_without_a_level_is_at_0():
    page = (Path(__file__).parents[4] / "docs" / "cluster-operations.md").read_text()
    levels = re.findall(r"^\| (\d+) \| .* \| .* \|$", page, re.MULTILINE)
    assert [int(level) for level in levels] == list(range(SUPPORTED.first, SUPPORTED.last + 1))
    assert Finalized() == (0, 0)
