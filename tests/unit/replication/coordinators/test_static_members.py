"""A static member that is back takes its place without a rebalance, and the leader assigns nothing anew."""

import pytest

from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic.state import Group, Member, Phase
from replication.coordinators.groups.classic.step import step
from replication.coordinators.groups.messages import Appended, Now
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import NONE

PROTOCOLS = (("range", b""),)
TIMES = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000}
MEMBERS = {
    name: Member(id=name, instance_id=f"static {name}", protocols=PROTOCOLS, deadline_ms=51_000, **TIMES)
    for name in ("leads", "follows")
}
JOINED = {"generation": 3, "protocol_type": "consumer", "protocol": "range", "leader": "leads", "members": MEMBERS}


@pytest.mark.parametrize(
    ("name", "may_skip", "told"),
    [
        ("leads", True, ("new", True, 2)),
        ("leads", False, ("leads", False, 0)),  # it must not learn that it leads: it would assign anew
        ("follows", True, ("leads", False, 0)),
        ("follows", False, ("leads", False, 0)),
    ],
)
def test_only_the_leader_is_told_of_the_members_and_to_skip_the_assignment(name, may_skip, told):
    now, limits = Now(50_000, 1_000_000), GroupSettings()
    join = events.Join(
        request=1, member_id="", fresh_id="new", instance_id=f"static {name}", protocol_type="consumer",
        protocols=PROTOCOLS, needs_known_id=True, may_skip=may_skip, **TIMES,
    )  # fmt: skip
    group, (append,) = step(Group(id="g", phase=Phase.STABLE, **JOINED), join, now, limits)
    _, (answer,) = step(group, Appended(append.write, NONE), now, limits)
    assert (answer.body.leader, answer.body.skips, len(answer.body.members)) == told
