"""StoredGroup: one group of any type and its log, whatever the log and the coordinator do."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.kinds import resume
from replication.coordinators.groups.messages import Appended, Now
from replication.coordinators.groups.records import Loaded, records_of
from replication.errors import NONE, ErrorCode


class StoredGroup(RuleBasedStateMachine):
    """A subclass has `limits`, `post`, `perform` and `clients`, each with the request that it `asked`."""

    def begin(self):
        self.now_ms, self.group = 0, Group(id="g")
        self.log, self.writes, self.requests = [], [], 0

    def now(self):
        return Now(self.now_ms, 1_000_000 + self.now_ms)

    @precondition(lambda self: self.writes)
    @rule(error=st.sampled_from([NONE, NONE, NONE, ErrorCode.NOT_ENOUGH_REPLICAS]))
    def is_written(self, error):
        append = self.writes.pop(0)
        if error is NONE:
            self.log += records_of("g", append)
        self.post(Appended(append.write, error, len(self.log)))

    @rule(are_written=st.booleans())
    def coordinator_fails(self, are_written):
        """Another one reads the log; of the writes in flight, all or none are in it."""
        if are_written:
            for append in self.writes:
                self.log += records_of("g", append)
        self.writes = []
        for client in self.clients:
            self.lose_answer(client)
        self.group, effects = resume(self.loaded(), {}, self.now(), self.limits)
        self.perform(effects)

    def lose_answer(self, client):
        if client.asked is not None:
            client.asked, client.says_all = None, True

    def loaded(self):
        loaded = Loaded()
        for position, (key, value) in enumerate(self.log):
            loaded.apply(position, key, value)
        return loaded.group("g")
