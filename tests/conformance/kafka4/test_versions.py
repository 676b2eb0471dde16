"""docs/protocol.md beside a real Kafka 4.4: where the versions of an API differ, the page has a row, and a reason."""

import re
from pathlib import Path

import pytest

from replication.protocol import apis
from replication.protocol.apis import ApiKey
from tests.docs.test_protocol import camel
from tests.support.asker import Asker
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]
PAGE = (Path(__file__).parents[3] / "docs/protocol.md").read_text(encoding="utf-8")
SOFTWARE = {"client_software_name": "asker", "client_software_version": "1"}


def test_the_page_has_every_api_whose_versions_differ(one_broker):
    with Asker(one_broker.bootstrap) as asker:
        found = asker.ask(ApiKey.API_VERSIONS, 4, SOFTWARE)
    theirs = {row.api_key: (row.min_version, row.max_version) for row in found.api_keys}
    ours = {int(key): (first, last) for key, first, last in apis.advertised(apis.SERVED)}
    differ = {key: (theirs.get(key), ours.get(key)) for key in theirs | ours if theirs.get(key) != ours.get(key)}
    table = PAGE.partition("### Kafka 4.4 beside pylog")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([\d–]+|none) \| ([\d–]+|none) \| (.+) \|$", table, re.MULTILINE)
    assert {int(key): (versions(theirs), versions(ours)) for key, _, theirs, ours, _ in rows} == differ
    assert {int(key): name for key, name, *_ in rows} == {key: camel(apis.name_of(key)) for key in differ}


def versions(text):
    return None if text == "none" else tuple(map(int, text.split("–")))
