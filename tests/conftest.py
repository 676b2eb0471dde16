"""For all tests: Ctrl-C reaches the processes that they start; slow files go first; --long."""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support import repeats

# Sessions of tests are short: a JVM that optimises less has done more by the end (by a third of the CPU time).
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# The files whose tests share a Spark session, in two halves. tests/spark/test_exactly_once_kills.py starts its own.
SESSIONS = dict.fromkeys(
    ("batch", "cluster", "stream", "jobs", "session", "delta_jar"), "reads and jobs"
) | dict.fromkeys(
    ("exactly_once", "tiering", "tiering_delta", "tiering_restore", "tiering_stores"), "writes and tiering"
)
# Some tests start many interpreters: each would compile all modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="repeat the random tests more often: seeds, crash points, kills, examples (tests/support/repeats.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Undo what pytest-xdist does to its workers: their children would inherit that they ignore SIGINT."""
    repeats.choose(is_long=config.getoption("long"))
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Scheduling(LoadFileScheduling):
    """Hands out whole files, and those that share a Spark session together: half a minute's work to start and warm."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        name = file.removeprefix("tests/spark/test_").removesuffix(".py")
        return SESSIONS.get(name, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first: none of it runs on alone at the end."""
    slow = {
        item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("spark")
    }
    items.sort(key=lambda item: (item.path.parent.name != "spark", item.path not in slow))


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """A broker that is run in this process makes its files private: the next test's are not."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
