"""How the house is built, in numbers: `python -m tests.measures [--no-trace]`.

Rooms of a package are its modules and packages at one level; floors the longest chain of imports between them (a circle
counts as one floor); arrows the pairs of rooms of which one imports the other, lazy imports too. Lines are all lines of
a file. Functions of a Produce: a real broker takes one request of one batch with acks=all, and every function of ours
counts that is on the stack whenever the request is handed on: to the file, to a thread, to the loop, to a future or to
the socket. `down` is until the write to the .log file, `back` what is new from there to the socket.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("logstore", "replication", "datasource", "pyspark_pylog", "pytest_pylog")
LONG_LINES = 450
# What later issues asked for (decision 94): modules, and net lines that the commits for it left in modules before them.
FEATURES = {  # package -> its modules
    "replication": "client",
    "replication.broker": "handlers.log_dirs handlers.small_commits handlers.small_produce handlers.transactions "
    "markers process_metrics verification",
    "replication.cli": "configs connecting groups offsets performance records replicas state_logs status "
    "supervisor topics transactions verify_replicas",
    "replication.config": "live",
    "replication.coordinators": "transactions",
    "replication.replica": "nearest quota",
    "replication.tools": "brokers configs connecting console elections groups offset_resets offsets performance "
    "plans reassignments replica_comparison replica_verification state_logs status topics transactions verifiable",
    "datasource": "delta.owner jobs.release topics.cluster topics.transactions",
    "logstore.cli": "places",
    "replication.network": "turn",
    "replication.protocol": "small_messages",
    "logstore.records": "keyed plain",
    "replication.coordinators.groups.machine": "standing",
    "datasource.connector": "garbage",
}
FEATURES_IN_OLDER_MODULES = 1068 + 797 + 208 + 157 + 111
HANDED_ON = {
    "call_soon",
    "call_soon_threadsafe",
    "set_result",
    "run_in_executor",
    "submit",
    "put",
    "create_task",
    "writelines",
}


def sources() -> dict[str, Path]:
    """Every module of the product, by its dotted name."""
    found = {}
    for top in PACKAGES:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """module -> the modules that it imports. What an `__init__` does counts for its package itself."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found[name].add(full if full in modules else node.module)
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
    return {name: {other for other in others if other in modules} for name, others in found.items()}


def plan(package: str, modules: dict[str, Path], imported: dict[str, set[str]]) -> tuple[int, int, int]:
    """(rooms, floors, arrows) of a package."""

    def room(module: str) -> str | None:
        return module[len(package) + 1 :].split(".", maxsplit=1)[0] if module.startswith(f"{package}.") else None

    rooms = {found for module in modules if (found := room(module))}
    arrows = {
        (room(module), room(other))
        for module, others in imported.items()
        for other in others
        if room(module) and room(other) and room(module) != room(other)
    }
    reach = {a: {b for x, b in arrows if x == a} for a in rooms}
    for _ in rooms:  # what is reached over any number of arrows
        reach = {a: reach[a].union(*(reach[b] for b in reach[a])) for a in rooms}
    circles = {a: frozenset({a} | {b for b in reach[a] if a in reach[b]}) for a in rooms}
    floors: dict[frozenset[str], int] = {}

    def floor(circle: frozenset[str]) -> int:
        if circle not in floors:
            below = {circles[b] for a in circle for x, b in arrows if x == a} - {circle}
            floors[circle] = 1 + max(map(floor, below), default=0)
        return floors[circle]

    return len(rooms), max(map(floor, circles.values()), default=0), len(arrows)


class Trace:
    """The functions of ours that a Produce passes, in the order in which they hand it on."""

    def __init__(self) -> None:
        self.down: dict[str, None] = {}
        self.back: dict[str, None] = {}
        self.is_written = self.is_answered = self.is_on = False

    def __call__(self, frame, event, argument) -> None:
        """See sys.setprofile."""
        if not self.is_on or self.is_answered or event not in ("call", "c_call"):
            return
        name = frame.f_code.co_name if event == "call" else getattr(argument, "__name__", "")
        is_file = event == "call" and name == "write" and str(frame.f_locals.get("path", "")).endswith(".log")
        if name not in HANDED_ON and not is_file and not (name == "write" and self.is_written):
            return
        passed = self.back if self.is_written else self.down
        stack, one = [], frame
        while one is not None:
            path = Path(one.f_code.co_filename)
            if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES:
                stack.append(f"{path.relative_to(ROOT)}:{one.f_code.co_qualname}")
            one = one.f_back
        if self.is_produce(stack):
            passed.update(
                dict.fromkeys(place for place in reversed(stack) if place not in self.down or not self.is_written)
            )
            self.is_answered = self.is_written and not is_file and name in ("write", "writelines")
            self.is_written = self.is_written or is_file

    @staticmethod
    def is_produce(stack: list[str]) -> bool:
        """Not what the broker does at the same time on its own: timers of its other parts."""
        return any(word in place for place in stack for word in ("handlers", "server", "replica", "log", "isr", "disk"))


def produce() -> Trace:
    """One small request to a broker in this process, traced."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from tests.support.in_process import brokers_in_process

    trace = Trace()
    threading.setprofile(trace)
    with (
        tempfile.TemporaryDirectory() as directory,
        brokers_in_process(Path(directory), (1,), default_replication_factor=1) as brokers,
    ):
        settings = {"bootstrap.servers": brokers.bootstrap, "log_level": 0}
        admin = AdminClient(settings)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
        producer = Producer({**settings, "acks": "all"})
        for number in range(20):  # all that is found out once is known then
            trace.is_on = number == 19
            producer.produce("t", b"v", partition=0)
            producer.flush(20)
            time.sleep(0.05)
    threading.setprofile(None)
    return trace


def contracts() -> tuple[int, int]:
    """(import contracts, lines of pyproject.toml for them)."""
    text = (ROOT / "pyproject.toml").read_text()
    part = text[text.index("# Who may import whom") : text.index("[tool.mypy]")]
    return part.count("[[tool.importlinter.contracts]]"), len(part.strip().splitlines())


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-trace", action="store_true", help="start no broker")
    asked = parser.parse_args()
    modules = sources()
    imported = imports(modules)
    rows = [
        (f"rooms / floors / arrows: {package}", " / ".join(map(str, plan(package, modules, imported))))
        for package in PACKAGES[:3]
    ]
    sizes = {name: len(path.read_text().splitlines()) for name, path in modules.items()}
    largest = max(sizes, key=sizes.__getitem__)
    total = sum(sizes.values())
    features = ("pytest_pylog.", *(f"{top}.{name}." for top, names in FEATURES.items() for name in names.split()))
    later = sum(lines for name, lines in sizes.items() if f"{name}.".startswith(features))
    rows += [
        (
            f"largest module ({largest}); modules above {LONG_LINES} lines",
            f"{sizes[largest]}; {sum(size > LONG_LINES for size in sizes.values())}",
        ),
        ("product lines", f"{total}"),
        ("product lines without what later issues asked for", f"{total - later - FEATURES_IN_OLDER_MODULES}"),
        ("import contracts, lines of pyproject for them", "{}, {}".format(*contracts())),
        ("README lines", f"{len((ROOT / 'README.md').read_text().splitlines())}"),
    ]
    if not asked.no_trace:
        trace = produce()
        rows.append(("functions from a Produce frame to the file, and back", f"{len(trace.down)}, {len(trace.back)}"))
    print("| | now |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), sep="\n")
    if not asked.no_trace:
        print("", "down:", *trace.down, "back:", *trace.back, sep="\n  ", file=sys.stderr)


if __name__ == "__main__":
    main()
