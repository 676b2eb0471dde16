"""`pylog produce`, `pylog consume` and `pylog delete-records`: records in, out, and gone."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from logstore.cli.columns import typed_formatter, typed_target, typing_options
from logstore.cli.places import ClusterOption, either_place
from logstore.cli.terminal import Failure, counted, open_store, output_option, show, talk, usage_errors
from logstore.cli.topics import topic_argument
from logstore.errors import InvalidRequestError, PylogError, UnreadableBatchError
from logstore.tools import console

if TYPE_CHECKING:
    from logstore.schemas.choice import Typing

# The capacity of a pipe: one append per read keeps a slow writer's lines from waiting for more.
CHUNK_BYTES = 1024 * 1024

property_option = click.option(
    "--property", "given", multiple=True, metavar="NAME=VALUE", help="A property, see above; may be repeated."
)


@click.command()
@topic_argument()
@click.option("--key-separator", metavar="TEXT", help="Each line is key, TEXT, value.")
@click.option("--headers", "with_headers", is_flag=True, help="Each line begins with name:value,name:value and a tab.")
@property_option
@click.option("--partition", type=click.IntRange(min=0), help="Write to this partition, whatever the key.")
@click.option(
    "--compression-codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Codec of the batches. [default: the topic's compression.type]",
)
@typing_options(reading=False)
@either_place("replication.cli.records:produce")
@output_option
def produce(name: str, path: Path, output: str, typing: Typing, **options: Any) -> None:
    """Append the lines of stdin as records, make them durable, and print their offsets.

    \b
    $ printf 'Ada:1\\nBob:2\\n' | pylog produce orders --key-separator : --path data
    $ echo 'hello' | pylog produce orders --bootstrap-server 127.0.0.1:9092
    $ echo '{"user": "Ada", "n": 3}' | pylog produce orders --path data \\
        --schema 'user string, n int'

    RECORDS counts the lines that this command wrote, at offsets from START to before END. Records of other
    writers may be between them. After an error the command prints the offsets of the lines before.

    Properties have the names of the console producer: parse.key, key.separator, parse.headers, headers.delimiter,
    headers.separator, headers.key.separator, null.marker (the text that means null).

    With --typed or --schema each value is a JSON object of these columns. One that does not fit is refused with the
    number of its line; the others are written in the format of the topic.
    """
    writer = line_writer(name, **options)
    with open_store(path) as store:
        write_lines(name, writer, typed_target(store, name, typing, lambda: store.schemas), output)


def line_writer(
    topic: str,
    *,
    key_separator: str | None,
    with_headers: bool,
    given: tuple[str, ...],
    partition: int | None,
    compression_codec: str | None,
) -> console.LineWriter:
    """Return the writer of lines for these options of `produce`."""
    with usage_errors():
        chosen = console.properties(given, console.PRODUCE_PROPERTIES)
        if key_separator is not None:
            chosen |= {"parse.key": "true", "key.separator": key_separator}
        if with_headers:
            chosen["parse.headers"] = "true"
        parser = console.LineParser(chosen)
    return console.LineWriter(topic, parser, partition=partition, compression=compression_codec)


def write_lines(name: str, writer: console.LineWriter, target: console.LineTarget, output: str) -> None:
    """Append the lines of stdin, and show their offsets, also those of before an error."""
    try:
        with _signals_end_stdin():
            writer.write(target, _chunks())
    except PylogError:
        if writer.written:
            _show_written(name, writer.written, output)
        raise
    if output == "table":
        talk(f"{counted(sum(w.records for w in writer.written.values()), 'record')} to {name}")
    _show_written(name, writer.written, output)


def _show_written(name: str, written: Mapping[int, console.Written], output: str) -> None:
    show(
        (
            {"topic": name, "partition": p, "start": w.start, "end": w.end, "records": w.records}
            for p, w in sorted(written.items())
        ),
        ("partition", "start", "end", "records"),
        output,
    )


def _chunks() -> Iterator[bytes]:
    if sys.stdin.isatty():
        talk("one record per line; end with Ctrl-D")
    return iter(lambda: sys.stdin.buffer.read1(CHUNK_BYTES), b"")  # type: ignore[union-attr]


@contextmanager
def _signals_end_stdin() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM be the end of stdin: what was read is appended whole, which an exception might cut short.

    A second signal interrupts at once.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: FrameType | None) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        with Path(os.devnull).open("rb") as nothing:  # a read that waits is begun again, and finds the end
            os.dup2(nothing.fileno(), sys.stdin.fileno())

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command()
@topic_argument()
@click.option("--from-beginning", is_flag=True, help="Start at the first record.")
@click.option("--offset", metavar="N|earliest|latest", help="Start here; a number needs --partition.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("--max-messages", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--follow", is_flag=True, help="Wait for new records, until SIGTERM or Ctrl-C.")
@click.option(
    "--timeout-ms", type=click.IntRange(min=0), metavar="MS", help="Follow, and end after MS without a record."
)
@click.option(
    "--view", type=click.Choice(["latest"]), help="latest: only the last record of each key, unless it is a tombstone."
)
@property_option
@click.option("-f", "--format", "template", metavar="TEXT", help="Format of a record, as in kcat: '%p %o %k: %s\\n'.")
@click.option("--group", cls=ClusterOption, metavar="GROUP", help="Read as a member of this group, and commit offsets.")
@click.option(
    "--group-protocol",
    cls=ClusterOption,
    type=click.Choice(["classic", "consumer"]),
    help="Protocol of the group; consumer: its coordinator assigns the partitions. [default: classic]",
)
@click.option(
    "--share-group",
    cls=ClusterOption,
    metavar="GROUP",
    help="Read as a member of this share group; accept what is printed.",
)
@click.option(
    "--isolation-level",
    cls=ClusterOption,
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="read_committed skips records of open and aborted transactions.",
)
@typing_options(reading=True)
@either_place("replication.cli.records:consume")
@output_option
def consume(
    name: str,
    from_beginning: bool,
    offset: str | None,
    partition: int | None,
    max_messages: int | None,
    follow: bool,
    timeout_ms: int | None,
    view: str | None,
    given: tuple[str, ...],
    template: str | None,
    path: Path,
    output: str,
    typing: Typing,
) -> None:
    """Print the records of a topic, partition by partition, or with --follow the new ones as they come.

    \b
    $ pylog consume orders --from-beginning --property print.key=true --path data
    $ pylog consume orders --group billing --max-messages 10 \\
        --bootstrap-server 127.0.0.1:9092
    $ pylog consume jobs --share-group workers --timeout-ms 1000 \\
        --bootstrap-server 127.0.0.1:9092

    \b
    --output json prints one line of JSON per record.
    --view latest reads each partition from its end, and prints each key once.
    --typed or --schema prints columns: cells, or JSON with --output json.
    -f replaces %t topic, %p partition, %o offset, %T timestamp (ms), %k key,
    %s value, %K and %S their sizes in bytes, %h headers, and \\n, \\t.

    Properties have the names of the console consumer: print.timestamp, print.partition, print.offset,
    print.headers, print.key, print.value, key.separator, line.separator, headers.separator, null.literal.

    A batch that cannot be decoded is named on stderr and skipped; the exit code is 1 then.
    """
    with usage_errors():
        format_record = formatter(output, template, given, typing)
    check_view(view, offset=offset, from_beginning=from_beginning, follow=follow, timeout_ms=timeout_ms)
    follow = follow or timeout_ms is not None
    first = start_of(from_beginning, offset, partition)
    with open_store(path, mode="r") as store:
        if typing:
            format_record = typed_formatter(name, output, typing, lambda: store.schemas, store.topic)
        if view:
            read = partial(console.latest_records, store, name, partition)
        elif follow:
            read = partial(console.followed_records, store, name, partition, first, timeout_ms)
        else:
            read = partial(console.stored_records, store, name, partition, first or "earliest")
        print_records(read, format_record, max_messages=max_messages, follow=follow)


def print_records(
    read: Callable[..., Iterator[console.ConsoleRecord]],
    format_record: console.Shower,
    *,
    max_messages: int | None,
    follow: bool,
    printed: MutableMapping[int, int] | None = None,
) -> None:
    """Print records as they come, and what is left out; with `follow` Ctrl-C and SIGTERM are their end.

    `printed` (with `follow`) gets the offset behind the last record of each partition that has left this process.
    Raises: Failure: at the end, if something was left out.
    """
    out, count, missed = sys.stdout.buffer, 0, 0

    def skipped(error: UnreadableBatchError) -> None:
        nonlocal missed
        talk(f"skipped: {error}")
        missed += error.next_offset - error.base_offset

    records = read(skipped=skipped)
    try:
        lines = itertools.islice(_shown(records, format_record, printed), max_messages)
        for count, (record, line) in enumerate(lines, start=1):  # noqa: B007
            out.write(line)
            if follow:
                out.flush()
            if printed is not None:
                printed[record.partition] = record.offset + 1
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        if isinstance(records, Generator):
            records.close()  # here, and not when it is collected: a member of a group commits and leaves
    out.flush()
    talk(counted(count, "record"))
    if missed:
        raise Failure(f"{counted(missed, 'offset')} skipped, in batches that cannot be decoded")


def _shown(
    records: Iterator[console.ConsoleRecord], shower: console.Shower, passed: MutableMapping[int, int] | None
) -> Iterator[tuple[console.ConsoleRecord, bytes]]:
    """Yield what is shown of records; `passed` gets the offset behind one that is not."""
    for record in records:
        if (line := shower(record)) is not None:
            yield record, line
        elif passed is not None:
            passed[record.partition] = record.offset + 1


def formatter(output: str, template: str | None, given: tuple[str, ...], typing: Typing) -> console.Shower:
    """Return the formatter of records for these options of `consume`, but for columns. Raises: InvalidRequestError."""
    if (template is not None) + bool(given) + (output == "json") > 1:
        raise click.UsageError("give one of --format, --property and --output json")
    if typing and (template is not None or given):
        raise click.UsageError("columns have no --format and no --property: leave these options out")
    if output == "json":
        return console.json_formatter
    if template is not None:
        return console.template_formatter(template)
    return console.text_formatter(console.properties(given, console.CONSUME_PROPERTIES))


def check_view(view: str | None, **others: Any) -> None:
    """Raise UsageError for options that say where a view begins, or that it goes on."""
    if view and (given := [name for name, value in others.items() if value is not None and value is not False]):
        option = f"--{given[0].replace('_', '-')}"
        raise click.UsageError(f"--view {view} is of all present records of a partition: leave {option} out")


def start_of(from_beginning: bool, offset: str | None, partition: int | None) -> int | str | None:
    """The offset, or "earliest" or "latest"; None when nothing was asked for."""
    if from_beginning and offset is not None:
        raise click.UsageError("give --from-beginning or --offset, not both")
    if from_beginning or offset is None:
        return "earliest" if from_beginning else None
    if offset in ("earliest", "latest"):
        return offset
    if not offset.isdecimal():
        raise click.BadParameter(f"{offset!r} is neither a number nor earliest nor latest", param_hint="--offset")
    if partition is None:
        raise click.UsageError("an offset is a place in one partition: give --partition too")
    return int(offset)


@click.command("delete-records")
@topic_argument(required=False)
@click.option("--partition", type=click.IntRange(min=0), help="The partition.")
@click.option(
    "--offset", type=click.IntRange(min=-1), metavar="N", help="Delete the records below it; -1: all records."
)
@click.option(
    "--offset-json-file",
    "plan",
    type=click.File("rb"),
    metavar="FILE",
    help="Partitions and offsets, in the form of Kafka's tool; - is stdin.",
)
@either_place("replication.cli.offsets:delete_records")
@output_option
def delete_records(
    name: str | None, partition: int | None, offset: int | None, plan: Any, path: Path, output: str
) -> None:
    """Delete the records below an offset, for good, and show the offsets that are left.

    \b
    $ pylog delete-records orders --partition 0 --offset 0 --path data
    $ echo '{"partitions": [{"topic": "orders", "partition": 0, "offset": 0}]}' |
        pylog delete-records --offset-json-file - --path data
    $ pylog delete-records orders --partition 0 --offset 0 \\
        --bootstrap-server 127.0.0.1:9092

    Readers see the new start at once; the files of whole segments go after file.delete.delay.ms. In a directory, a
    JSON file is applied topic by topic, and the command ends at the first topic that fails.
    """
    wanted = wanted_deletions(name, partition, offset, plan)
    rows = list[dict[str, object]]()
    with open_store(path) as store:
        for topic in wanted:  # unknown ones are an error before anything is deleted
            store.topic(topic)
        try:
            for topic, offsets in wanted.items():
                for p, left in sorted(store.delete_records(topic, offsets).items()):
                    rows.append({"topic": topic, "partition": p, "start": left.start, "end": left.end})
        finally:
            show(rows, ("topic", "partition", "start", "end"), output if rows else "table")


def wanted_deletions(
    name: str | None, partition: int | None, offset: int | None, plan: Any
) -> dict[str, dict[int, int]]:
    """Parse the options of `delete-records`: topic -> partition -> offset."""
    with usage_errors():
        if plan is not None and (name, partition, offset) == (None, None, None):
            return _planned(plan.read())
        if plan is None and name is not None and partition is not None and offset is not None:
            return {name: {partition: offset}}
        raise click.UsageError("give a topic, --partition and --offset, or --offset-json-file")


def _planned(text: bytes) -> dict[str, dict[int, int]]:
    """Parse the file of Kafka's tool: topic -> partition -> offset."""
    form = '{"partitions": [{"topic": "orders", "partition": 0, "offset": 7}]}'
    wanted: dict[str, dict[int, int]] = {}
    try:
        plan = json.loads(text)
        if plan.get("version", 1) != 1:
            raise InvalidRequestError(f"--offset-json-file: version {plan['version']} where 1 is known")
        for entry in plan["partitions"]:
            topic, partition, offset = entry["topic"], entry["partition"], entry["offset"]
            if not (isinstance(topic, str) and type(partition) is int and type(offset) is int):
                raise TypeError
            if partition in wanted.setdefault(topic, {}):
                raise InvalidRequestError(f"--offset-json-file names {topic}-{partition} twice")
            wanted[topic][partition] = offset
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidRequestError(f"--offset-json-file is not of the form {form}") from None
    return wanted
