"""The page of metrics stays small, whatever clients call their groups."""

import re

from replication.broker.metrics import LABEL_CHARS_MAX, gauge, text


def labels(page):
    return re.findall(r'consumergroup="([^"]*)"', page)


def test_long_names_are_cut_and_stay_different():
    names = ["g" * 30_000, "g" * 30_000 + "1", "g" * 249, "short"]
    found = labels(text([gauge("members", *(({"consumergroup": name}, 1) for name in names))]))
    assert len(set(found)) == 4
    assert all(len(label) <= LABEL_CHARS_MAX for label in found)
    assert found[2:] == names[2:]
