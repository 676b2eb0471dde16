"""The `kafka-features.sh` of a Kafka 4.4 on our brokers: it shows the level of the cluster, and raises it."""

import asyncio
import re

import pytest

from replication.model.features import SUPPORTED
from tests.support.in_process import begun_by_an_earlier_release, brokers_in_process
from tests.support.kafka4 import run_tool
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a JVM several times")]


def features(bootstrap, *words, check=True):
    tool = "org.apache.kafka.tools.FeatureCommand"
    return run_tool(tool, "--bootstrap-server", bootstrap, *words, check=check)


def described(bootstrap):
    """Return per feature its lowest and highest supported level, the finalized one, and the epoch."""
    lines = features(bootstrap, "describe").stdout.splitlines()
    rows = [re.split(r"\s*\w+: ", line) for line in lines if line.startswith("Feature:")]
    return {name: tuple(int(word) for word in row) for _, name, *row in rows}


def test_kafkas_own_tool_shows_the_level_and_raises_it(tmp_path):
    asyncio.run(begun_by_an_earlier_release(f"sqlite:{tmp_path / 'tree.db'}"))
    with brokers_in_process(tmp_path, (1, 2)) as running:
        bootstrap = ",".join(str(broker.endpoint) for broker in running.brokers.values())
        others = {
            **dict.fromkeys(("group.version", "pylog.schemas", "share.version"), (0, 1, 0)),
            "transaction.version": (0, 2, 2),
        }
        assert described(bootstrap) == {"pylog.version": (*SUPPORTED, 0, 0)} | {k: (*v, 0) for k, v in others.items()}
        dry = features(bootstrap, "upgrade", "--feature", "pylog.version=1", "--dry-run")
        assert "pylog.version can be upgraded to 1." in dry.stdout
        assert described(bootstrap)["pylog.version"] == (*SUPPORTED, 0, 0)
        done = features(bootstrap, "upgrade", "--feature", "pylog.version=1")
        assert "pylog.version was upgraded to 1." in done.stdout
        assert described(bootstrap) == {"pylog.version": (*SUPPORTED, 1, 1)} | {k: (*v, 1) for k, v in others.items()}
        for words, reason in (
            (
                ("upgrade", "--feature", f"pylog.version={SUPPORTED.last + 1}"),
                f"This broker only supports versions 0-{SUPPORTED.last}.",
            ),
            (("downgrade", "--feature", "pylog.version=0"), "a level that was raised stays"),
            (("downgrade", "--feature", "pylog.version=0", "--unsafe"), "a level that was raised stays"),
            (("disable", "--feature", "pylog.version"), "a level that was raised stays"),
            (("upgrade", "--feature", "metadata.version=1"), "This broker does not support this feature."),
        ):
            refused = features(bootstrap, *words, check=False)
            assert refused.returncode == 1
            assert reason in refused.stdout + refused.stderr, refused
