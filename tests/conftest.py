"""For all tests: Ctrl-C reaches the processes that they start; slow files go first; --long."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support import repeats

# Sessions of tests are short: a JVM that optimises less has done more by the end (by a third of the CPU time), and
# Python workers are forked from a process that has loaded pylog (tests/spark/preload).
JVM = os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
PRELOAD = str(Path(__file__).parent / "spark" / "preload")
if PRELOAD not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PRELOAD, os.environ.get("PYTHONPATH")]))
# The files whose tests share a Spark session, in two halves. tests/spark/test_exactly_once_kills.py starts its own.
SESSIONS = dict.fromkeys(
    ("batch", "cluster", "stream", "jobs", "session", "delta_jar"), "reads and jobs"
) | dict.fromkeys(
    ("exactly_once", "tiering", "tiering_delta", "tiering_restore", "tiering_stores"), "writes and tiering"
)
# These are begun in this order, before the other slow files: the demo, which leaves its JVM's classes for the JVMs that
# are started after it, two files without a JVM in the meantime, and the sessions, which take longest.
FIRST = [
    "tests/docs/test_demo.py",
    "tests/integration/cluster/test_giants.py",
    "tests/integration/cluster/test_mirror.py",
    "reads and jobs",
    "writes and tiering",
    "tests/spark/test_exactly_once_kills.py",
    "tests/docs/test_python_examples.py",
]
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


def scope_of(file: str) -> str:
    """Return what is handed to a worker as a whole: the file, or those that share a Spark session."""
    return SESSIONS.get(file.removeprefix("tests/spark/test_").removesuffix(".py"), file)


class Scheduling(LoadFileScheduling):
    """To start and warm a Spark session is half a minute's work: one worker has all that share it."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first: none of it runs on alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def turn(item: pytest.Item) -> tuple[int, bool]:
        scope = scope_of(item.nodeid.partition("::")[0])
        return FIRST.index(scope) if scope in FIRST else len(FIRST), item.path not in slow

    items.sort(key=turn)


@pytest.fixture(scope="session")
def jvm_classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file with the classes of a JVM of Spark, once there is one: a JVM that loads it starts with half the work."""
    own = tmp_path_factory.getbasetemp()
    file = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "classes.jsa"
    yield file
    file.unlink(missing_ok=True)  # a hundred megabytes


@pytest.fixture(autouse=True)
def _quick_jvm(jvm_classes: Path) -> None:
    if jvm_classes.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"{JVM} -XX:SharedArchiveFile={jvm_classes} -Xlog:disable"


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """A broker that is run in this process makes its files private: the next test's are not."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
