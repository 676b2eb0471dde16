"""Looks at `_schemas`: an id counts as unknown by one that began after its record, and that saw the end."""

import asyncio
import json

from logstore.config import LogConfig
from logstore.env import SYSTEM
from logstore.schemas.subjects import Registered, Schema, Subjects, schema_record
from replication.replica.leader import schema_ids
from replication.replica.leader.schema_ids import SchemaIds
from replication.replica.machine.looks import Looks, Verdict
from tests.support.site import on_loop, until

CONFIG = LogConfig(value_schema_validation=True)


class Registry:
    """The end of `_schemas`, whose reads wait for `gate`, and fail as long as `error` says."""

    def __init__(self):
        self.state, self.gate, self.error, self.reads = Subjects(), asyncio.Event(), None, 0
        self.gate.set()

    async def read_on(self):
        self.reads += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.state, True

    def register(self, schema_id):
        entry = Registered("orders-value", schema_id, schema_id, Schema("AVRO", json.dumps(f"s{schema_id}")))
        self.state.apply(*schema_record(entry), is_ours=True)


def ids_in(ids):
    return list(ids.demands("orders", CONFIG)[0].ids)


def test_a_batch_is_judged_by_a_look_that_began_after_it_came():
    assert Looks(7, 7, 7).judge(None) is Verdict.HELD
    assert Looks(7, 7, 7).judge(7) is Verdict.HELD  # begun before
    assert Looks(8, 7, 7).judge(7) is Verdict.HELD  # under way
    assert Looks(8, 8, 8).judge(7) is Verdict.REFUSED
    assert Looks(8, 8, 6).judge(7) is Verdict.NOT_KNOWN  # it has not seen the end
    assert Looks(9, 8, 6).judge(8) is Verdict.HELD


@on_loop
async def test_those_who_come_during_a_look_wait_for_the_next_one_together():
    registry = Registry()
    ids, over = SchemaIds(SYSTEM.clock, registry.read_on), []
    assert ids_in(ids) == []
    registry.gate.clear()
    ids.look(lambda: over.append("first"))
    await until(lambda: registry.reads == 1)
    registry.register(3)
    ids.look(lambda: over.append("second"))
    ids.look(lambda: over.append("third"))
    assert over == []
    registry.gate.set()
    await until(lambda: len(over) == 3)
    assert over == ["first", "second", "third"]
    assert ids.looks == Looks(2, 2, 2)
    assert ids_in(ids) == [3]
    registry.register(4)
    assert ids_in(ids) == [3]  # until somebody looks


@on_loop
async def test_a_look_that_cannot_see_the_end_is_over_in_bounded_time(monkeypatch):
    monkeypatch.setattr(schema_ids, "LOOK_S", 0.3)
    registry = Registry()
    ids, over = SchemaIds(SYSTEM.clock, registry.read_on), []
    registry.error = ConnectionError("nobody is there")
    ids.look(lambda: over.append(ids.looks))
    await until(lambda: over)
    assert registry.reads > 1  # it tried again
    registry.gate.clear()  # no answer at all
    ids.look(lambda: over.append(ids.looks))
    await until(lambda: len(over) == 2)
    assert over == [Looks(1, 1, 0), Looks(2, 2, 0)]
    registry.error = None
    registry.gate.set()
    ids.look(lambda: over.append(ids.looks))
    await until(lambda: len(over) == 3)
    assert over[-1] == Looks(3, 3, 3)


@on_loop
async def test_records_that_come_have_deletions_seen_after_a_while(monkeypatch):
    registry = Registry()
    ids, over = SchemaIds(SYSTEM.clock, registry.read_on), []
    ids.fresh_demands("orders", CONFIG)
    ids.look(lambda: over.append(1))
    await until(lambda: over)
    ids.fresh_demands("orders", CONFIG)
    assert ids.looks.begun == 1
    monkeypatch.setattr(schema_ids, "FRESH_MS", -1)
    registry.register(5)

    def a_record_comes():
        ids.fresh_demands("orders", CONFIG)
        return ids_in(ids) == [5]

    await until(a_record_comes)
