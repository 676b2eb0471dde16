"""For all tests: Ctrl-C reaches the processes that they start; slow files go first."""

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

# Sessions of tests are short: a JVM that optimises less has done more by the end (by a third of the CPU time).
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# On a busy machine any example may take any time.
hypothesis.settings.register_profile("pylog", deadline=None)
hypothesis.settings.load_profile("pylog")


def pytest_configure(config: pytest.Config) -> None:
    """Undo what pytest-xdist does to its workers: their children would inherit that they ignore SIGINT."""
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first (pytest-xdist hands out whole files): none of them runs on alone at the end."""
    slow = {
        item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("spark")
    }
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """A broker that is run in this process makes its files private: the next test's are not."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
