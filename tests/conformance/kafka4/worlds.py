"""Records of Confluent's Avro serializer beyond the usual: every logical type, references, subjects of records."""

import datetime as dt
import json
import uuid
from decimal import Decimal

from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

NOON = dt.datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
PLACE = '{"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "city", "type": "string"}]}'
NOTE = '{"type": "record", "name": "Note", "namespace": "shop", "fields": [{"name": "text", "type": "string"}]}'
FIELDS = {
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 6},
    "fee": {"type": "fixed", "name": "Fee", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 3},
    "day": {"type": "int", "logicalType": "date"},
    "lunch": {"type": "int", "logicalType": "time-millis"},
    "dinner": {"type": "long", "logicalType": "time-micros"},
    "at_ms": {"type": "long", "logicalType": "timestamp-millis"},
    "at_us": {"type": "long", "logicalType": "timestamp-micros"},
    "local_ms": {"type": "long", "logicalType": "local-timestamp-millis"},
    "local_us": {"type": "long", "logicalType": "local-timestamp-micros"},
    "id": {"type": "string", "logicalType": "uuid"},
    "lasts": {"type": "fixed", "name": "Lasts", "size": 12, "logicalType": "duration"},
    "maybe": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
    "last_null": [{"type": "int", "logicalType": "date"}, "null"],
    "either": ["null", "string", "int"],
    "place": "geo.Place",
    "before": ["null", "geo.Place"],
}
TYPES = [
    ["price", "decimal(20,6)"],
    ["fee", "decimal(12,3)"],
    ["day", "date"],
    ["lunch", "int"],
    ["dinner", "bigint"],
    ["at_ms", "timestamp"],
    ["at_us", "timestamp"],
    ["local_ms", "timestamp_ntz"],
    ["local_us", "timestamp_ntz"],
    ["id", "string"],
    ["lasts", "binary"],
    ["maybe", "timestamp"],
    ["last_null", "date"],
    ["either", "struct<member0:string,member1:int>"],
    ["place", "struct<city:string>"],
    ["before", "struct<city:string>"],
]
VISIT = {
    "type": "record",
    "name": "Visit",
    "namespace": "shop",
    "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()],
}
COLUMNS = (
    "price decimal(20,6), day date, local_ms timestamp_ntz, maybe timestamp, place struct<city:string>, text string"
)
NAMES = [column.split()[0] for column in COLUMNS.split(", ")]
STRATEGIES = {
    "visits": topic_subject_name_strategy,
    "visits-by-record": record_subject_name_strategy,
    "visits-by-both": topic_record_subject_name_strategy,
}
SUBJECTS = (
    "places",
    "visits-value",
    "shop.Visit",
    "shop.Note",
    "visits-by-both-shop.Visit",
    "visits-by-both-shop.Note",
)


def visit(n):
    return {
        "price": Decimal(n * 1_234_567 * (-1) ** n).scaleb(-6),
        "fee": Decimal(n * 125 - 3000).scaleb(-3),
        "day": dt.date(1969, 12, 25) + dt.timedelta(days=n),
        "lunch": dt.time(12, n % 60, 1, 5000),
        "dinner": dt.time(19, n % 60, 1, n),
        "at_ms": NOON.replace(microsecond=n * 1000),
        "at_us": dt.datetime(1961, 4, 12, 6, 7, 0, n, tzinfo=dt.UTC),
        "local_ms": dt.datetime(1950, 1, 2, 3, 4, 5, n * 1000),  # noqa: DTZ001 - of no zone
        "local_us": dt.datetime(2026, 11, 29, 12, 0, 0, n),  # noqa: DTZ001
        "id": uuid.UUID(int=n),
        "lasts": n.to_bytes(4, "little") * 3,
        "maybe": NOON.replace(microsecond=0) if n % 2 else None,
        "last_null": None if n % 3 else dt.date(2000, 2, 29),
        "either": (None, "text", n)[n % 3],
        "place": {"city": f"city {n}"},
        "before": {"city": "Ulm"} if n % 4 else None,
    }


VISITS = [visit(n) for n in range(30)]
NOTES = [{"text": f"note {n}"} for n in range(30)]


def write(bootstrap, client):
    """Write visits to a topic of each strategy, and notes beside them where a topic may have several records."""
    client.register_schema("places", Schema(PLACE, "AVRO"))
    whole = Schema(json.dumps(VISIT), "AVRO", [SchemaReference("geo.Place", "places", 1)])
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic, strategy in STRATEGIES.items():
        for schema, rows in ((whole, VISITS), (NOTE, [] if topic == "visits" else NOTES)):
            serialize = AvroSerializer(client, schema, conf={"subject.name.strategy": strategy})
            for row in rows:
                value = serialize(row, SerializationContext(topic, MessageField.VALUE))
                producer.produce(topic, value=value, partition=0)
    assert producer.flush(60) == 0


def shown(row):
    """Return a row of Confluent's deserializer as its columns show it."""
    either, lunch, dinner = row["either"], row["lunch"], row["dinner"]
    return row | {
        "id": str(row["id"]),
        "lunch": ((lunch.hour * 60 + lunch.minute) * 60 + lunch.second) * 1000 + lunch.microsecond // 1000,
        "dinner": ((dinner.hour * 60 + dinner.minute) * 60 + dinner.second) * 10**6 + dinner.microsecond,
        "either": None if either is None else {"member0": either, "member1": None}
        if isinstance(either, str)
        else {"member0": None, "member1": either},
    }  # fmt: skip


def named(row):
    """Return a row of either record in the columns of both."""
    return {name: row.get(name) for name in NAMES}


def plain(rows):
    """Return rows of columns as JSON has them, so that those of Arrow and of Spark can be compared."""
    return json.loads(json.dumps(rows, default=_text))


def _text(value):
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat()  # all are of UTC, or of no zone
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)
