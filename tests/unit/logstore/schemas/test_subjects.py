"""The records of `_schemas`: as other registries write them; one id for one text, and never again for another."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.schemas.subjects import (
    Record,
    Reference,
    Registered,
    Schema,
    Subjects,
    UnknownKeyError,
    config_record,
    refusal,
    schema_record,
)

KARAPACE = Path(__file__).parents[3] / "transcripts" / "karapace-4.1.3-schemas.jsonl"
TEXTS = [Schema("AVRO", f'"t{number}"') for number in range(4)] + [Schema("JSON", '"t0"')]

# The records that Confluent's registry writes.
CONFLUENT = [
    (b'{"keytype":"NOOP","magic":0}', None),
    (b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"FULL"}'),
    (
        b'{"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}',
        b'{"subject":"orders-value","version":1,"id":1,"schema":"\\"string\\"","deleted":false}',
    ),
    (
        b'{"keytype":"SCHEMA","subject":"orders-value","version":2,"magic":1}',
        b'{"subject":"orders-value","version":2,"id":4,"schemaType":"JSON","references":'
        b'[{"name":"a","subject":"parts","version":3}],"schema":"{}","deleted":false}',
    ),
    (b'{"keytype":"MODE","subject":null,"magic":0}', b'{"mode":"READWRITE"}'),
]


def folded(records, *, is_ours=True):
    state = Subjects()
    for key, value in records:
        state.apply(key, value, is_ours=is_ours)
    return state


def test_the_records_of_confluents_registry_are_read():
    state = folded(CONFLUENT, is_ours=False)
    assert state.is_foreign
    assert state.id_max == 4
    assert state.level("orders-value") == "FULL"
    first, second = state.versions("orders-value")
    assert first == Registered("orders-value", 1, 1, Schema("AVRO", '"string"'))
    assert second.schema == Schema("JSON", "{}", (Reference("a", "parts", 3),))
    assert state.referring("parts", 3) == [second]


def test_a_topic_that_karapace_wrote_adds_up_to_what_it_answered():
    """It registered, deleted and changed levels on a broker of ours; its own answers at the end are below."""
    lines = [json.loads(line) for line in KARAPACE.read_text().splitlines()]
    state = folded([(line["key"].encode(), (line["value"] or "").encode()) for line in lines], is_ours=False)
    assert state.subjects() == ["js-value", "o-value", "orders-value"]
    assert [(entry.version, entry.id) for entry in state.versions("orders-value")] == [(1, 2), (3, 4)]
    assert state.versions("other-value", with_deleted=True) == []
    assert state.level(None) == state.level("orders-value") == "FULL"
    assert state.schema(1).text == '{"fields":[{"name":"x","type":"int"}],"name":"A","type":"record"}'
    assert state.schema(5).type == "JSON"
    assert state.schema(3) is None  # deleted for good


def test_our_records_are_theirs_byte_for_byte():
    state = folded(CONFLUENT)
    assert [schema_record(entry) for entry in state.versions("orders-value")] == CONFLUENT[2:4]
    assert config_record(None, "FULL") == CONFLUENT[1]
    assert config_record("s", None, "t").value == b'{"alias":"t"}'
    assert config_record("s", None).value is None
    assert state.to_delete("orders-value", None) == [
        (
            b'{"keytype":"DELETE_SUBJECT","subject":"orders-value","magic":0}',
            b'{"subject":"orders-value","version":2}',
        )
    ]


def test_karapace_deletes_for_good_with_an_empty_value_and_writes_members_in_another_order():
    state = folded(CONFLUENT, is_ours=False)
    value = b'{"deleted":false,"id":5,"schema":"\\"int\\"","subject":"orders-value","version":3}'
    state.apply(b'{"keytype":"SCHEMA","magic":1,"subject":"orders-value","version":3}', value, is_ours=False)
    state.apply(CONFLUENT[2][0], b"", is_ours=False)
    assert [(entry.version, entry.id) for entry in state.versions("orders-value")] == [(2, 4), (3, 5)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"x", None),
        (b"[]", None),
        (b"[" * 20_000, None),
        (b'{"keytype":"OTHER"}', b"{}"),
        (b'{"keytype":"SCHEMA","version":1}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b"x"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"subject":"s","version":2,"id":1,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"subject":"s","version":1,"id":-1,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"subject":"s","version":1,"id":true,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"subject":"s","version":1,"id":1}'),
        (
            b'{"keytype":"SCHEMA","subject":"s","version":1}',
            b'{"subject":"s","version":1,"id":1,"schema":"x","references":[1]}',
        ),
        (b'{"keytype":"CONFIG","subject":5}', None),
    ],
)
def test_another_record_is_named_as_such_and_changes_nothing(key, value):
    state = folded(CONFLUENT)
    with pytest.raises(UnknownKeyError):
        state.apply(key, value, is_ours=True)
    assert (state.subjects(), state.id_max) == (["orders-value"], 4)
    assert refusal(state, Record(key, value), is_ours=True).startswith("no record of _schemas: ")


class Writer:
    """It does what a random client does, and keeps what it wrote."""

    def __init__(self) -> None:
        self.state = Subjects()
        self.records: list[Record] = []
        self.ids: dict[int, Schema] = {}  # each that was ever handed out

    def write(self, records) -> None:
        for record in records:
            assert refusal(self.state, record, is_ours=True) is None
            self.records.append(record)

    def step(self, dice: random.Random) -> None:
        subject, schema = dice.choice("ab"), dice.choice(TEXTS)
        known = self.state.versions(subject, with_deleted=True)
        kind = dice.choice(["register"] * 3 + ["delete", "delete", "remove", "remove"])
        if kind == "register" and self.state.registered(subject, schema) is None:
            entry = self.state.to_register(subject, schema)
            self.write([schema_record(entry)])
            assert self.ids.setdefault(entry.id, schema) == schema, "an id of another text"
        elif kind == "delete" and known:
            self.write(self.state.to_delete(subject, dice.choice([None, dice.choice(known).version])))
        elif kind == "remove" and (gone := [entry for entry in known if entry.is_deleted]):
            self.write(self.state.to_remove(subject, dice.choice(gone).version))


@given(st.integers(0, 2**32))
def test_no_id_is_handed_out_twice_and_compaction_changes_nothing(seed):
    dice, writer = random.Random(seed), Writer()
    for _ in range(40):
        writer.step(dice)
        last = sorted({record.key: offset for offset, record in enumerate(writer.records)}.values())
        left = (writer.records[offset] for offset in last)
        compacted = folded(record for record in left if record.value is not None)
        assert compacted.id_max == writer.state.id_max
        for subject in "ab":
            assert compacted.versions(subject, with_deleted=True) == writer.state.versions(subject, with_deleted=True)


@given(st.integers(0, 2**32))
def test_of_two_writers_who_looked_at_one_state_the_second_is_refused(seed):
    dice, first, second = random.Random(seed), Writer(), Subjects()
    for _ in range(20):
        first.step(dice)
    for key, value in first.records:
        second.apply(key, value, is_ours=True)
    subject, schema, other = dice.choice("ab"), dice.choice(TEXTS), dice.choice(TEXTS)
    if first.state.registered(subject, schema) is None:
        first.write([schema_record(first.state.to_register(subject, schema))])
    for name in "ab":
        late = second.to_register(name, other)
        why = refusal(first.state, schema_record(late), is_ours=True)
        if why is None:
            assert first.ids.setdefault(late.id, other) == other
            assert late in first.state.versions(name)


def test_a_topic_has_writers_of_one_kind():
    ours = schema_record(Registered("s", 1, 1, TEXTS[0]))
    state = Subjects()
    assert refusal(state, ours, is_ours=True) is None
    assert "pylog hands out the ids" in refusal(state, Record(*CONFLUENT[0]), is_ours=False)
    state = Subjects()
    assert refusal(state, Record(*CONFLUENT[0]), is_ours=False) is None
    assert "another registry writes _schemas" in refusal(state, ours, is_ours=True)
    assert refusal(state, Record(b"any", b"thing"), is_ours=False) is None


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Registered("s", 1, 1, TEXTS[1]), "subject 's' has another version 1"),
        (Registered("s", 3, 2, TEXTS[1]), "version 3 of subject 's' is not the next, 2"),
        (Registered("s", 2, 1, TEXTS[1]), "id 1 is not that of this schema, 2"),
        (Registered("s", 2, 3, TEXTS[1]), "id 3 is not that of this schema, 2"),
        (Registered("t", 1, 2, TEXTS[0]), "id 2 is not that of this schema, 1"),
        (Registered("s", 2, 1, TEXTS[0]), "subject 's' has this schema already, as version 1"),
    ],
)
def test_what_contradicts_the_log_is_refused_with_what_it_should_be(entry, why):
    state = folded([schema_record(Registered("s", 1, 1, TEXTS[0]))])
    assert refusal(state, schema_record(entry), is_ours=True) == why
    assert state.id_max == 1
