"""Would the tests notice? Changes one thing at a time in the code that decides, and runs that code's tests.

`make mutants` tries a sample of the changes in each module (a comparison turned, a number off by one, a condition or an
effect left out, a truth negated) and says which of them no test noticed. Each is a process forked from this one: it
loads the changed module from memory, so that nothing on disk is touched and libraries are imported once.

Survivors are gaps in the tests, or change nothing that anybody could notice; those of the second kind are in
`tests/mutants_explained.json`, with the reason.

The results of `python -m tests.mutants --sample 25 MODULE` on the 22nd of November: how many survived then, and why
none does now: a test kills it (each was seen to die; or the code that nothing depended on is gone), or it is explained.
None is open. Samples change with the code, so another run finds others.

=========================  ========  ======  =========
module                     survived  killed  explained
=========================  ========  ======  =========
isr, roles, follower       1+0+4     5
assignment                 1         1
controller/elections       2         1       1
controller/rebalance       5         5
controller/machine         5         3       2
controller/deletion        6         4       2
controller/draft           4         3       1
controller/reassignment    2         2
groups/joining, commits    4+4       8
groups/classic, draft      3+4       6       1
groups/records             3         2       1
epochs, retention          8+1       9
recovery                   10        6       4
log                        10        5       5
segment                    7         5       2
validation, lookup         5+9       10      4
holes, replica/repair      0+4       4
producers                  8         4       4
txn_state (of 25, of 60)   4+10      11      3
=========================  ========  ======  =========
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPLAINED = Path(__file__).with_name("mutants_explained.json")
SCRIPTS = "tests/transcripts/test_transcripts.py"
CONTROLLER = ("tests/unit/replication/controller/test_machine.py", SCRIPTS)
GROUPS = ("tests/unit/replication/coordinators", SCRIPTS)
_LOG = ("log", "rolling", "flushing", "cuts")
LOG = (*(f"tests/unit/logstore/log/test_{part}.py" for part in _LOG), "tests/model/test_log_model.py")
RECOVERY = ("tests/unit/logstore/log/test_faults.py", "tests/unit/logstore/log/test_recovery_cost.py", *LOG)
# The changed module, and the tests that should notice.
TARGETS: dict[str, tuple[str, ...]] = {
    "replication/replica/machine/isr.py": ("tests/unit/replication/replica/test_isr.py",),
    "replication/replica/machine/follower.py": ("tests/unit/replication/replica/test_follower.py",),
    "replication/replica/machine/leadership.py": ("tests/unit/replication/replica/test_leadership.py",),
    "replication/replica/machine/repair.py": ("tests/unit/replication/replica/test_repair.py",),
    "replication/replica/leader/guard.py": (
        "tests/unit/replication/broker/test_guard.py",
        "tests/integration/broker/test_hostile_batches.py",
    ),
    "replication/replica/leader/writers.py": ("tests/unit/replication/replica/test_writers.py",),
    "replication/model/features.py": ("tests/unit/replication/model/test_features.py",),
    "replication/coordination/features.py": ("tests/unit/replication/coordination/test_features.py",),
    "replication/model/placement.py": ("tests/unit/replication/controller/test_assignment.py",),
    "replication/controller/machine/assignment.py": (
        "tests/unit/replication/controller/test_assignment.py",
        *CONTROLLER,
    ),
    **{
        f"replication/controller/machine/{name}.py": CONTROLLER
        for name in ("deletion", "draft", "elections", "reassignment", "rebalance", "step")
    },
    **{
        f"replication/coordinators/groups/classic/{name}.py": GROUPS
        for name in ("commits", "draft", "joining", "permission", "step")
    },
    "replication/coordinators/groups/records.py": GROUPS,
    **{
        f"replication/client/{name}.py": (f"tests/unit/replication/client/test_{name}.py",)
        for name in ("deliveries", "share_ahead", "share_sessions")
    },
    "replication/coordinators/groups/offsets/step.py": GROUPS,
    **{
        f"replication/coordinators/transactions/machine/{name}.py": (
            f"tests/unit/replication/coordinators/test_transaction_{tests}.py",
        )
        for name, tests in (("records", "records"), ("step", "laws"))
    },
    "logstore/log/holes.py": ("tests/unit/logstore/log/test_holes.py",),
    "logstore/log/validation.py": ("tests/unit/logstore/log/test_validation.py", *LOG),
    "logstore/log/segments/lookup.py": (
        "tests/unit/logstore/log/test_lookup.py",
        "tests/unit/logstore/log/test_formats.py",
        *LOG,
    ),
    "logstore/log/log.py": ("tests/unit/logstore/log/test_processes.py", *RECOVERY),
    "logstore/log/segments/segment.py": ("tests/unit/logstore/log/test_index.py", *RECOVERY),
    "logstore/log/recovery.py": RECOVERY,
    "logstore/log/leader_epochs.py": ("tests/unit/logstore/log/test_leader_epochs.py",),
    "logstore/maintenance/retention.py": ("tests/unit/logstore/maintenance/test_retention.py",),
    "logstore/log/producers/state.py": (
        "tests/unit/logstore/log/test_producers.py",
        "tests/model/test_producer_model.py::TestInMemory",
    ),
    "logstore/store/transactions/state.py": ("tests/unit/logstore/transactions/test_state.py",),
}
HEAVY = (
    "pytest",
    "_hypothesis_pytestplugin",
    "hypothesis",
    "numpy",
    "numba",
    "pyarrow",
    "kio.schema.errors",
    "click",
)
POLL_S = 0.02
BASELINE_S = 600.0  # what the tests of an unchanged module may take

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change. `line` is the code as it is without it, `number` counts the changes of its module."""

    module: str
    number: int
    at: int
    what: str
    line: str


@dataclass(frozen=True)
class Outcome:
    """The verdict of the tests on a mutant: `killed`, `timeout` (which is as good), `survived` or `explained`.

    Time is CPU time first, so that a busy machine makes nobody slow; a mutant that waits for ever is given up later.
    """

    mutant: Mutant
    verdict: str
    why: str = ""


# -------------------------------------------------------------------------- changes

_Change = tuple[ast.AST, str, Callable[[], None], Callable[[], None]]


def _set(node: ast.AST, name: str, value: object, what: str, at: ast.AST | None = None) -> _Change:
    before = getattr(node, name)
    return at or node, what, lambda: setattr(node, name, value), lambda: setattr(node, name, before)


def _without(node: ast.AST, name: str, index: int, what: str) -> _Change:
    items = getattr(node, name)
    return _set(node, name, items[:index] + items[index + 1 :], what, at=items[index])


def _changes_of(node: ast.AST) -> Iterator[_Change]:  # noqa: PLR0912  a case per kind
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                if (turned := _TURNED.get(type(operator))) is not None:
                    ops = [*node.ops[:index], turned(), *node.ops[index + 1 :]]
                    yield _set(node, "ops", ops, f"{type(operator).__name__} -> {turned.__name__}")
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _set(node, "op", other, f"{type(node.op).__name__} -> {type(other).__name__}")
            for index in range(len(node.values)):
                yield _without(node, "values", index, "condition left out")
        case ast.If() | ast.IfExp() | ast.While():
            for truth in (True, False):
                if not isinstance(node, ast.While) or not truth:
                    yield _set(node, "test", ast.Constant(truth), f"condition -> {truth}")
        case ast.UnaryOp(op=ast.Not()):
            yield _set(node, "operand", ast.UnaryOp(ast.Not(), node.operand), "not left out")
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield _set(node, "op", other, f"{type(node.op).__name__} -> {type(other).__name__}")
        case ast.Constant(value=bool()):
            yield _set(node, "value", not node.value, f"{node.value} -> {not node.value}")
        case ast.Constant(value=int()):
            yield _set(node, "value", node.value + 1, f"{node.value} -> {node.value + 1}")
        case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED:
            yield _set(node.func, "id", _SWAPPED[name], f"{name} -> {_SWAPPED[name]}", at=node)
        case ast.Call(func=ast.Name(id="replace")) if len(node.keywords) > 1:
            for index, keyword in enumerate(node.keywords):
                yield _without(node, "keywords", index, f"{keyword.arg} is not replaced")
        case ast.Tuple(ctx=ast.Load()) | ast.List(ctx=ast.Load()):
            for index, item in enumerate(node.elts):
                if isinstance(item, ast.Call | ast.Starred):
                    yield _without(node, "elts", index, "item left out")


def _walk(node: ast.AST) -> Iterator[_Change]:
    """The changes below a node; those that only change types, messages or what must hold anyway are left out."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Assert | ast.JoinedStr | ast.Raise):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call) and isinstance(value, list):
                index, rest = value.index(child), list(value)
                rest[index] = ast.copy_location(ast.Pass(), child)
                yield _set(node, name, rest, "call left out", at=child)
            yield from _changes_of(child)
            yield from _walk(child)


def changes(source: str) -> Iterator[tuple[ast.Module, int, str]]:
    """The module with one change after the other in it: (tree, line, what was changed). Each is undone in the end."""
    tree = ast.parse(source)
    for node, what, apply, undo in list(_walk(tree)):
        apply()
        ast.fix_missing_locations(tree)
        yield tree, getattr(node, "lineno", 0), what
        undo()


# ---------------------------------------------------------------------------- runs


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module as it was changed."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._name = module.removesuffix(".py").replace("/", ".")
        self._path = str(ROOT / module)
        self._tree = tree

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def exec_module(self, module: object) -> None:
        exec(compile(self._tree, self._path, "exec"), vars(module))


@dataclass(frozen=True)
class Allowed:
    """How long the tests of a mutant may take: of the CPU, and in all."""

    cpu_s: float = BASELINE_S
    wall_s: float = BASELINE_S


def _begin(module: str, tree: ast.Module | None, tests: tuple[str, ...], allowed: Allowed) -> int:
    """Run the tests in a process of their own; return its id."""
    if (child := os.fork()) != 0:
        return child
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (round(allowed.cpu_s), resource.RLIM_INFINITY))
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    signal.alarm(round(allowed.wall_s) + 1)  # should the parent be gone
    if tree is not None:
        sys.meta_path.insert(0, _Changed(module, tree))
    import pytest

    words = [
        "-x",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "--assert=plain",
        "--hypothesis-seed=0",
    ]
    os._exit(int(pytest.main(["-o", "addopts=", *words, *tests])))


def _verdict(child: int, deadline_s: float) -> str | None:
    """The outcome; None while it is not over."""
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        code = os.waitstatus_to_exitcode(status)
        return "survived" if code == 0 else "timeout" if code == -signal.SIGXCPU else "killed"
    if time.monotonic() < deadline_s:
        return None
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def run_all(modules: list[str], sample: int, seed: int, jobs: int, say: Callable[[Outcome], None]) -> None:
    """Try `sample` changes of each module, or all if it is 0."""
    explained = json.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else {}
    running: dict[int, tuple[Mutant, float]] = {}

    def collect(limit: int) -> None:
        while len(running) > limit:
            for child, (mutant, deadline_s) in list(running.items()):
                if (verdict := _verdict(child, deadline_s)) is not None:
                    del running[child]
                    why = explained.get(f"{mutant.module}: {mutant.line}: {mutant.what}", "")
                    if verdict == "survived" and why:
                        verdict = "explained"
                    say(Outcome(mutant, verdict, why))
            time.sleep(POLL_S)

    for module in modules:
        tests, source = TARGETS[module], (ROOT / module).read_text()
        begin_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        child = _begin(module, None, tests, Allowed())
        while (verdict := _verdict(child, begin_s + BASELINE_S)) is None:
            time.sleep(POLL_S)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if verdict != "survived":
            sys.stderr.write(f"\n{module} is left out: {' '.join(tests)} fail without any change\n")
            continue
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        allowed = Allowed(10 + 5 * cpu_s, 60 + 20 * (time.monotonic() - begin_s))
        count = sum(1 for _ in changes(source))
        chosen = set(random.Random(f"{seed} {module}").sample(range(count), min(sample or count, count)))
        lines = source.splitlines()
        for number, (tree, at, what) in enumerate(changes(source)):
            if number in chosen:
                mutant = Mutant(module, number, at, what, lines[at - 1].strip() if at else "")
                child = _begin(module, tree, tests, allowed)
                running[child] = mutant, time.monotonic() + allowed.wall_s
                collect(jobs - 1)
        collect(0)


def report(outcomes: list[Outcome]) -> str:
    """The score of each module, and the survivors."""
    rows = []
    for module in dict.fromkeys(outcome.mutant.module for outcome in outcomes):
        verdicts = [outcome.verdict for outcome in outcomes if outcome.mutant.module == module]
        counts = [verdicts.count(word) for word in ("killed", "timeout", "explained", "survived")]
        rows.append((module, len(verdicts), *counts, score(outcomes, module)))
    lines = [f"{'module':40} {'tried':>6} {'killed':>7} {'timeout':>8} {'explained':>10} {'survived':>9}  score"]
    lines += [f"{row[0]:40} {row[1]:6} {row[2]:7} {row[3]:8} {row[4]:10} {row[5]:9}  {row[6]:.1%}" for row in rows]
    lines.append(f"all: {score(outcomes):.1%}")
    for outcome in outcomes:
        if outcome.verdict == "survived":
            mutant = outcome.mutant
            lines.append(f"{mutant.module}:{mutant.at}: {mutant.what}: {mutant.line}")
    return "\n".join(lines)


def score(outcomes: list[Outcome], module: str | None = None) -> float:
    """The share of the changes that could be noticed, and were."""
    verdicts = [o.verdict for o in outcomes if module in (None, o.mutant.module) and o.verdict != "explained"]
    return 1 - verdicts.count("survived") / len(verdicts) if verdicts else 1.0


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"one or more of {', '.join(TARGETS)}")
    parser.add_argument("--sample", type=int, default=40, help="changes per module; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    asked = parser.parse_args()
    if unknown := set(asked.modules) - set(TARGETS):
        parser.error(f"no tests are named for {', '.join(sorted(unknown))}")
    for name in HEAVY:
        importlib.import_module(name)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    outcomes: list[Outcome] = []

    def say(outcome: Outcome) -> None:
        outcomes.append(outcome)
        sys.stderr.write(".tes"[("killed", "timeout", "explained", "survived").index(outcome.verdict)])
        sys.stderr.flush()

    with contextlib.suppress(KeyboardInterrupt):  # what was tried until then is told
        run_all(asked.modules or list(TARGETS), asked.sample, asked.seed, asked.jobs, say)
    sys.stderr.write("\n")
    text = json.dumps([asdict(o) for o in outcomes], indent=1) if asked.output == "json" else report(outcomes)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
