"""For all tests: Ctrl-C reaches the processes that they start; slow files go first; --long."""

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from xdist.scheduler import LoadFileScheduling

from replication.local_cluster import settings as local_cluster_settings
from tests.support import fork_server, repeats

# Before a worker loads all files: what is no test file, and yet asserts for tests that only name it.
pytest.register_assert_rewrite("tests.conformance.kafka4.walks")
# Sessions of tests are short: a JVM that optimises less has done more by the end (by a third of the CPU time), and
# Python processes load what they need and no more (tests/support/preload).
JVM = os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
PRELOAD = str(Path(__file__).parent / "support" / "preload")
if PRELOAD not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PRELOAD, os.environ.get("PYTHONPATH")]))
# The files of tests/spark that share no Spark session with the others.
NAMES = ("exactly_once_kills", "pipelines", "standalone", "upserts_kills", "workers")
APART = tuple(f"tests/spark/test_{name}.py" for name in NAMES)
# With --long these have a session of their own: one worker would be at it when all others have ended.
WRITES = ("tests/spark/test_exactly_once", "tests/spark/test_cluster_exactly_once", "tests/spark/test_tiering")
# Each test of this one starts a session of its own.
SMOKE = "tests/spark/test_smoke.py"
# These share a real Kafka: of three brokers, or of one.
KAFKA4 = "tests/conformance/kafka4"
_FILES = (Path(__file__).parent / "conformance/kafka4").glob("test_*.py")
OF_THREE = tuple(f"/{file.name}" for file in _FILES if "three_brokers" in file.read_text())
# These are begun in this order, before the other slow files: with --long the demo, which leaves its JVM's classes for
# the JVMs that are started after it; then the session, which takes longest.
FIRST = [
    "tests/docs/test_demo.py",
    "tests/spark",
    "tests/spark, writes",
    f"{KAFKA4}, three",
    "tests/spark/test_exactly_once_kills.py",
    "tests/docs/test_notebooks.py",
]
# Settings of the brokers of tests: they forgive nothing that a Kafka would not, and make few internal partitions, for
# Kafka's 50 are half a second's work for each cluster.
BROKERS = {
    "produce.base.offset.strict": "true",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}
# A test whose time is over fails. One that does not end then takes its worker with it, and all stacks are printed.
ENDS_WITHIN_S = 120
# Some tests start many interpreters: each would compile all modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="also what is dear, and more of the random tests: seeds, crash points, kills (tests/support/repeats.py)",
    )
    parser.addoption("--soak", action="store_true", help="--long, and tests marked `soak` run for minutes: `make soak`")


def pytest_configure(config: pytest.Config) -> None:
    """Undo what pytest-xdist does to its workers: their children would inherit that they ignore SIGINT."""
    repeats.choose(is_long=config.getoption("long"), is_soak=config.getoption("soak"))
    fork_server.begin()
    local_cluster_settings.DEFAULTS |= BROKERS
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Have each worker load a share of all test files first.

    A fresh clone has no bytecode of them: the workers would make that of the same file at the same time, half a minute
    of work for each of them. A file that cannot be loaded is told when it is collected.
    """
    config = session.config
    if not hasattr(config, "workerinput") or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    number = int(config.workerinput["workerid"].removeprefix("gw"))
    root = Path(__file__).parents[1]
    for file in sorted(root.glob("tests/**/test_*.py"))[number :: config.workerinput["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(root).with_suffix("").parts))


def scope_of(file: str) -> str:
    """Return what is handed to a worker as a whole: the file, or those that share a Spark session or a Kafka."""
    if file.startswith(KAFKA4):
        return f"{KAFKA4}, three" if file.endswith(OF_THREE) else KAFKA4
    if not file.startswith("tests/spark/") or file in APART:
        return file
    return "tests/spark, writes" if file.startswith(WRITES) and repeats.times(0, 1) else "tests/spark"


class Scheduling(LoadFileScheduling):
    """To start and warm a Spark session is half a minute's work: one worker has all that share it."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return nodeid if file == SMOKE else scope_of(file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests go first: none of them runs alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def turn(item: pytest.Item) -> tuple[int, bool]:
        scope = scope_of(item.nodeid.partition("::")[0])
        return FIRST.index(scope) if scope in FIRST else len(FIRST), item.path not in slow

    items.sort(key=turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a worker that a test holds for good: pytest-timeout interrupts a test once, and its clean-up may hang."""
    own = item.get_closest_marker("timeout")
    allowed_s = float(own.args[0] if own is not None else item.config.getini("timeout"))
    if allowed_s > 0:
        faulthandler.dump_traceback_later(
            allowed_s + ENDS_WITHIN_S, file=item.config.stash[fault_handler_stderr_fd_key], exit=True
        )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


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
