"""What is noted beside a group, and taken in later, makes the group that a step for each would have made."""

from dataclasses import replace

from hypothesis import settings
from hypothesis.stateful import rule

from replication.coordinators.groups.machine import events
from replication.coordinators.groups.machine.records import records_of
from replication.coordinators.groups.machine.standing import caught_up, is_plain_commit, is_plain_heartbeat
from replication.coordinators.groups.machine.state import Committed, Now, Phase
from replication.coordinators.groups.machine.step import step
from replication.errors import ErrorCode
from tests.support.repeats import times
from tests.unit.replication.coordinators.test_machine_laws import NAMES, PARTITIONS, STATIC, WALL_MS, GroupMachine

OTHERS = [None, "x", "y", "z"]  # instances


class StandingGroup(GroupMachine):
    """The same group of the same clients; each heartbeat and commit is also only noted."""

    def __init__(self):
        super().__init__()
        self.noted = self.group  # as it was after the last other event
        self.heard, self.stored = {}, {}

    def take(self, result):
        super().take(result)
        self.noted, self.heard, self.stored = self.group, {}, {}

    def now(self):
        return Now(self.now_ms, WALL_MS + self.now_ms)

    @rule(name=NAMES)
    def beat(self, name):
        generation, member_id = self.generations.get(name, 0), self.ids.get(name, "")
        for instance_id in OTHERS:
            for number in (generation, generation + 1):
                event = events.Heartbeat(request=1, member_id=member_id, generation=number, instance_id=instance_id)
                after, (answer,) = step(self.group, event, self.now(), self.limits)
                is_plain = is_plain_heartbeat(self.noted, member_id, number, instance_id)
                assert is_plain == (answer.body.error is ErrorCode.NONE)
                if is_plain:
                    assert after == caught_up(self.noted, {**self.heard, member_id: self.now_ms}, self.stored)
        if is_plain_heartbeat(self.noted, member_id, generation, STATIC.get(name)):
            self.heard[member_id] = self.now_ms
            self.group = caught_up(self.noted, self.heard, self.stored)

    @rule(name=NAMES)
    def commit_and_store(self, name):
        """A commit that is in the log before anything else happens, behind all that came before."""
        member_id, position = self.ids.get(name, ""), len(self.log) + len(self.writes)
        own = self.generations.get(name, 0), STATIC.get(name)
        for generation, instance_id, who in (
            (*own, member_id),
            (-1, None, ""),
            *((own[0], i, member_id) for i in OTHERS),
        ):
            offsets = {tp: Committed(position, -1, "", WALL_MS + self.now_ms) for tp in PARTITIONS[:2]}
            event = events.Commit(
                request=-1, offsets=offsets, member_id=who, generation=generation, instance_id=instance_id
            )
            after, (effect,) = step(self.group, event, self.now(), self.limits)
            is_plain = is_plain_commit(self.noted, who, generation, instance_id)
            if isinstance(effect, events.Answer):
                assert effect.body.error
                assert not is_plain
                continue
            assert is_plain
            if self.writes:
                continue  # it would not be the next in the log
            after, (answer,) = step(
                after, events.Appended(effect.write, ErrorCode.NONE, position), self.now(), self.limits
            )
            assert answer.body == events.OffsetsDone()
            stored = {tp: replace(new, position=position) for tp, new in offsets.items()}
            heard = {who: self.now_ms} if who in self.noted.members else {}
            assert after == caught_up(self.noted, self.heard | heard, self.stored | stored)
            if generation == own[0] and who and self.group.phase is not Phase.EMPTY:
                self.heard |= heard
                self.stored |= stored
                self.group = caught_up(self.noted, self.heard, self.stored)
                self.log_offsets(effect)
                return

    def log_offsets(self, append):
        self.log += records_of("g", append)


TestStandingGroup = StandingGroup.TestCase
TestStandingGroup.settings = settings(max_examples=times(60, 600), stateful_step_count=40, deadline=None)
