"""The text side of `pylog produce` and `pylog consume`: lines to records and back, as Kafka's tools do.

One Python object per record is right for a terminal; bulk work goes through `LogStore.append` and `LogStore.read`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from logstore import errors
from logstore.config import INT64_MAX, TIMESTAMP_TYPES
from logstore.store.description import TopicDescription
from logstore.store.reading import OffsetRange, read_round
from logstore.store.store import LogStore

if TYPE_CHECKING:
    import pyarrow as pa

Headers = tuple[tuple[str, bytes | None], ...]

PRODUCE_PROPERTIES = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "null.marker": "",
}
CONSUME_PROPERTIES = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


class ConsoleRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    headers: Headers
    key: bytes | None
    value: bytes | None


Formatter = Callable[[ConsoleRecord], bytes]
Shower = Callable[[ConsoleRecord], bytes | None]  # None: it is not shown
Skipped = Callable[[errors.UnreadableBatchError], object]  # gets the error of each batch that is gone round


def properties(given: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return `known` with the given `name=value` in it; a tab may be written as in Python.

    Raises: InvalidRequestError: no '=', or an unknown name.
    """
    result = dict(known)
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise errors.InvalidRequestError(f"property {text!r} is not of the form name=value")
        if name not in known:
            raise errors.InvalidRequestError(f"unknown property {name!r}{errors.did_you_mean(name, known)}")
        result[name] = unescape(value)
    return result


def unescape(text: str) -> str:
    """Return the text in which a backslash and t, n, r or 0 is the character it stands for."""
    marks = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
    return re.sub(r"\\([tnr0\\])", lambda found: marks[found[1]], text)


class LineParser:
    """Parses lines `[headers TAB] [key TAB] value`, where headers are `name:value,name:value`.

    `given`: Kafka's properties of the console producer. Raises: InvalidRequestError.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._texts = {name: value.encode() for name, value in given.items()}
        self._has_key, self._has_headers = _flag("parse.key", given), _flag("parse.headers", given)
        for name in ("key.separator", "headers.delimiter", "headers.separator", "headers.key.separator"):
            if not given[name]:
                raise errors.InvalidRequestError(f"property {name} is empty: give at least one character")

    def rows(self, lines: Iterable[bytes], before: int) -> tuple[list[Row], errors.InvalidRecordError | None]:
        """Return the rows of these lines, up to the first that is none, and what is wrong with that.

        `before`: how many lines came before.
        """
        rows: list[Row] = []
        for number, line in enumerate(lines, start=before + 1):
            try:
                rows.append(self.row(line, number))
            except errors.InvalidRecordError as error:
                return rows, error
        return rows, None

    def row(self, line: bytes, number: int) -> Row:
        """Return the row of line `number`. Raises: InvalidRecordError: a separator is missing."""
        headers: Headers = ()
        key: bytes | None = None
        if self._has_headers:
            before, line = self._split(line, "headers.delimiter", number)
            headers = self._headers(before, number)
        if self._has_key:
            before, line = self._split(line, "key.separator", number)
            key = self._value(before)
        return Row(key, self._value(line), headers)

    def _headers(self, text: bytes, number: int) -> Headers:
        if not text or self._value(text) is None:
            return ()
        parts = text.split(self._texts["headers.separator"])
        pairs = (self._split(part, "headers.key.separator", number) for part in parts)
        return tuple((name.decode("utf-8", "replace"), self._value(value)) for name, value in pairs)

    def _split(self, text: bytes, separator: str, number: int) -> tuple[bytes, bytes]:
        before, found, rest = text.partition(self._texts[separator])
        if not found:
            shown = self._texts[separator].decode("utf-8", "replace")
            raise _refused(number, f"no {separator.replace('.', ' ')} {shown!r}")
        return before, rest

    def _value(self, text: bytes) -> bytes | None:
        marker = self._texts["null.marker"]
        return None if marker and text == marker else text


def split_lines(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the whole lines of each chunk, without their ends, as they come; the last may have no end."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def to_batch(rows: list[Row], partition: int | None = None) -> pa.RecordBatch:
    """Return the rows as Arrow. Columns that are null everywhere are left out."""
    import pyarrow as pa

    from logstore.records.tables import bytes_column, repeated

    columns = {"value": bytes_column([row.value for row in rows])}
    if any(row.key is not None for row in rows):
        columns["key"] = bytes_column([row.key for row in rows])
    if any(row.headers for row in rows):
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        pairs = [[{"key": k, "value": v} for k, v in row.headers] or None for row in rows]
        columns["headers"] = pa.array(pairs, pa.list_(header))
    if partition is not None:
        columns["partition"] = repeated(partition, len(rows))
    return pa.RecordBatch.from_pydict(columns)


@dataclass(slots=True)
class Written:
    """The offsets from the first to behind the last record of one process in a partition, and their number.

    Records of other writers may lie between.
    """

    start: int
    end: int
    records: int = 0


class LineTarget(Protocol):
    """Where lines go: a LogStore, or a cluster."""

    def topic(self, name: str) -> TopicDescription:
        """Raises: UnknownTopicError."""

    def log(self, topic: str, partition: int) -> object:
        """Raises: UnknownPartitionError."""

    def append(self, topic: str, data: pa.RecordBatch, *, compression: str | None) -> Mapping[int, OffsetRange]:
        """Append as `LogStore.append` does."""


class LineWriter:
    """Appends lines to a topic. `written` has the offsets per partition, also after an error."""

    def __init__(
        self, topic: str, parser: LineParser, *, partition: int | None = None, compression: str | None = None
    ) -> None:
        self.written: dict[int, Written] = {}
        self._topic = topic
        self._parser = parser
        self._partition = partition
        self._compression = compression
        self._lines = 0  # all of these are written
        self._in_order = True  # all lines go to one partition

    def write(self, store: LineTarget, chunks: Iterable[bytes]) -> None:
        """Append the lines, those of one chunk at a time. An error says how many of them were written.

        Raises: InvalidRecordError: a line is none, or cannot be stored: those before it were appended.
        """
        info = store.topic(self._topic)  # what is unknown is an error even if no line ever comes
        if self._partition is not None:
            store.log(self._topic, self._partition)
        self._in_order = self._partition is not None or info.partitions == 1
        for lines in split_lines(chunks):
            rows, wrong = self._parser.rows(lines, self._lines)
            if rows:
                self._append(store, rows)
            if wrong:
                raise wrong

    def _append(self, store: LineTarget, rows: list[Row]) -> None:
        try:
            appended = store.append(self._topic, to_batch(rows, self._partition), compression=self._compression)
        except errors.PylogError as error:
            partly = getattr(error, "appended", {})
            if partly or not isinstance(error, errors.InvalidRecordError):
                self._count(partly)
                raise self._cut_short(error, len(rows)) from None
            if len(rows) == 1:
                raise _refused(self._lines + 1, re.sub(r"^row 0:? | in row 0\b", "", str(error))) from error
            half = len(rows) // 2
            self._append(store, rows[:half])
            self._append(store, rows[half:])
            return
        self._count(appended)
        self._lines += len(rows)

    def _count(self, appended: Mapping[int, OffsetRange]) -> None:
        for p, done in appended.items():
            written = self.written.setdefault(p, Written(done.start, done.end))
            written.end, written.records = done.end, written.records + done.count

    def _cut_short(self, error: errors.PylogError, wanted: int) -> errors.PylogError:
        """The same error with the lines that are there: an append goes partition by partition, not line by line."""
        partly = sum(written.records for written in self.written.values()) - self._lines
        if self._in_order:
            self._lines, partly = self._lines + partly, 0
        then = f", then {partly} of the next {wanted} (partition by partition)" if partly else ""
        which = f"the first {self._lines} lines were written{then}, no later one"
        may_be_there = not isinstance(error, _NOTHING_MORE) or isinstance(error, errors.FailedStoreError)
        if may_be_there:  # the last ones, perhaps
            which = f"the first {self._lines} lines were written{then}, of later ones it is not known"
        elif not self._lines and not partly:
            which = "no line was written"
        error.args = (f"{error}; {which}",)
        return error


# Nothing was written when one of these is raised.
_NOTHING_MORE = (errors.InvalidRequestError, errors.StoreError, errors.StorageError)


def _flag(name: str, given: Mapping[str, str]) -> bool:
    text = given[name].lower()
    if text not in ("true", "false"):
        raise errors.InvalidRequestError(f"property {name}={given[name]!r}: true or false")
    return text == "true"


def _refused(number: int, reason: str) -> errors.InvalidRecordError:
    written = "the lines before it were written, no later one" if number > 1 else "no line was written"
    return errors.InvalidRecordError(f"line {number}: {reason}; {written}")


def console_records(topic: str, batch: pa.RecordBatch, partition: int) -> Iterator[ConsoleRecord]:
    """Yield the records of a batch with `RECORD_SCHEMA`'s columns."""
    import pyarrow as pa

    times = batch.column("timestamp").cast(pa.int64())
    others = (batch.column(name) for name in ("offset", "timestampType", "headers", "key", "value"))
    columns = (column.to_pylist() for column in (times, *others))
    for timestamp_ms, offset, kind, headers, key, value in zip(*columns, strict=True):
        pairs = tuple((h["key"], h["value"]) for h in headers or ())
        yield ConsoleRecord(topic, partition, offset, timestamp_ms, kind, pairs, key, value)


def stored_records(
    store: LogStore, topic: str, partition: int | None, start: int | str, *, skipped: Skipped
) -> Iterator[ConsoleRecord]:
    """Yield the present records, partition by partition, from an offset, "earliest" or "latest"."""
    partitions = range(store.topic(topic).partitions) if partition is None else [partition]
    for p in partitions:
        extent = store.log(topic, p)
        first = {"earliest": extent.log_start_offset, "latest": extent.log_end_offset}.get(str(start), start)

        def read(at: int, p: int = p) -> Iterator[pa.RecordBatch]:
            yield from store.read(topic, partition=p, start=at)

        for batch in read_round(read, int(first), INT64_MAX, skipped):  # a start behind the end of the log is an error
            yield from console_records(topic, batch, p)


def latest_records(store: LogStore, topic: str, partition: int | None, *, skipped: Skipped) -> Iterator[ConsoleRecord]:
    """Yield the last record of each key, partition by partition. A damaged one is an error, and not skipped."""
    for p in range(store.topic(topic).partitions) if partition is None else [partition]:
        for batch in store.read(topic, partition=p, view="latest"):
            yield from console_records(topic, batch, p)


def followed_records(
    store: LogStore,
    topic: str,
    partition: int | None,
    start: int | str | None,
    timeout_ms: int | None,
    *,
    skipped: Skipped,
) -> Iterator[ConsoleRecord]:
    """Yield the records from `start` (None: from now on) as they come, until none came for `timeout_ms`."""
    where: Any = {partition: start} if isinstance(start, int) else start or "latest"
    partitions = None if partition is None else [partition]
    tail = store.tail(topic, partitions=partitions, start=where, timeout_ms=timeout_ms)
    while True:
        try:
            for batch in tail:
                yield from console_records(topic, batch, batch.column("partition")[0].as_py())
            return
        except errors.UnreadableBatchError as error:
            skipped(error)


def text_formatter(given: Mapping[str, str]) -> Formatter:
    """Return a function that prints a record as the console consumer does: the chosen parts, the value last."""
    null = given["null.literal"].encode()
    separator, end = given["key.separator"].encode(), given["line.separator"].encode()
    between_headers = given["headers.separator"].encode()
    makers: dict[str, Formatter] = {
        "print.timestamp": lambda r: f"{TIMESTAMP_TYPES[r.timestamp_type]}:{r.timestamp_ms}".encode(),
        "print.partition": lambda r: b"Partition:%d" % r.partition,
        "print.offset": lambda r: b"Offset:%d" % r.offset,
        "print.headers": lambda r: between_headers.join(_header_pairs(r.headers, null)) or b"NO_HEADERS",
        "print.key": lambda r: null if r.key is None else r.key,
        "print.value": lambda r: null if r.value is None else r.value,
    }
    chosen = [maker for name, maker in makers.items() if _flag(name, given)]
    return lambda record: separator.join(make(record) for make in chosen) + end


_TOKENS: dict[str, Formatter] = {
    "t": lambda r: r.topic.encode(),
    "p": lambda r: b"%d" % r.partition,
    "o": lambda r: b"%d" % r.offset,
    "T": lambda r: b"%d" % r.timestamp_ms,
    "k": lambda r: r.key or b"",
    "s": lambda r: r.value or b"",
    "K": lambda r: b"%d" % _size(r.key),
    "S": lambda r: b"%d" % _size(r.value),
    "h": lambda r: b",".join(_header_pairs(r.headers, b"NULL", b"=")),
    "%": lambda r: b"%",
}


def template_formatter(template: str) -> Formatter:
    """Return a function that prints a record by a kcat template.

    %t topic, %p partition, %o offset, %T timestamp, %k key, %s value, %K and %S their sizes (-1: null), %h headers.
    """
    makers: list[Formatter] = []
    for token, literal in re.findall(r"%(.?)|([^%]+)", template, re.DOTALL):
        if literal:
            text = unescape(literal).encode()
            makers.append(lambda _, text=text: text)  # type: ignore[misc]
        elif token in _TOKENS:
            makers.append(_TOKENS[token])
        else:
            known = ", ".join(f"%{name}" for name in _TOKENS)
            raise errors.InvalidRequestError(f"unknown format '%{token}'; there are {known}")
    return lambda record: b"".join(make(record) for make in makers)


def json_formatter(record: ConsoleRecord) -> bytes:
    """Return the record as one line of JSON. Bytes that are not UTF-8 come as `{"base64": …}`."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestampType": TIMESTAMP_TYPES[record.timestamp_type],
        "headers": [[name, json_text(value)] for name, value in record.headers],
        "key": json_text(record.key),
        "value": json_text(record.value),
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def json_text(data: bytes | None) -> object:
    """Return bytes as JSON shows them: as text, or `{"base64": …}` if they are not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _header_pairs(headers: Headers, null: bytes, equals: bytes = b":") -> Iterator[bytes]:
    return (name.encode() + equals + (null if value is None else value) for name, value in headers)
