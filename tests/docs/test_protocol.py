"""docs/protocol.md: its table is what is served."""

import re
from pathlib import Path

from replication.protocol import apis
from replication.protocol.apis import INTERBROKER, SERVED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
OURS, _, BESIDE = PAGE.partition("### Kafka 4.4 beside pylog")


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


def test_the_table_names_every_api_and_its_versions():
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)–(\d+) \|", OURS, re.MULTILINE)
    assert [(int(key), name, int(first), int(last)) for key, name, first, last in rows] == [
        (key.value, camel(key.name), first, last) for key, (first, last) in SERVED.items() if key not in INTERBROKER
    ]


def test_what_brokers_say_to_each_other_is_named_with_its_version():
    for key in INTERBROKER:
        assert f"{camel(key.name)} ({SERVED[key].last})" in PAGE


def test_beside_a_kafka_each_row_has_what_is_served_here():
    """`tests/conformance/kafka4` compares the other column with a real one."""
    rows = re.findall(r"^\| (\d+) \| (\w+) \| [^|]+ \| ([^|]+) \|", BESIDE.partition("\n## ")[0], re.MULTILINE)
    ours = {key: f"{first}–{last}" for key, first, last in apis.advertised(SERVED)}
    assert rows == [(key, camel(apis.name_of(int(key))), ours.get(int(key), "none")) for key, *_ in rows]
    assert rows


def test_each_tool_of_java_has_tests():
    rows = PAGE.partition("### Java's clients")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", rows))
    java = {f"tests/conformance/java/{file.name}" for file in (ROOT / "tests/conformance/java").glob("test_*.py")}
    assert java <= named == {name for name in named if (ROOT / name).exists()}
