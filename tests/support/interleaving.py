"""All orders in which several writers of a tree can do their calls: each call is one step of its writer.

The tree is a SQLite table in memory, so its rules are those of the real one. A batch is many calls here, as it is in
ZooKeeper: others may come between them.
"""

import inspect
import random
import sqlite3
import types

from replication.coordination import nodes
from replication.coordination.sqlite_table import SCHEMA, NodeTable
from replication.coordination.tree import RefusedError, Tree, ensure_path

LATEST = 30  # turns of the others before a writer begins
STEPS_MAX = 2_000  # of all writers together; more is a loop without an end


class SteppedTree(Tree):
    """A tree whose calls each wait for their turn."""

    session, token, lease_end_ms = 1, b"", 0

    def __init__(self, like=None):
        """A tree with the nodes that every cluster has, or a copy of another one."""
        self._db = db = sqlite3.connect(":memory:", isolation_level=None)
        if like is not None:
            like._db.backup(db)
            self.table = NodeTable(db)
            return
        db.executescript(SCHEMA)
        self.table = NodeTable(db)
        for path in (*nodes.PERSISTENT_PATHS, nodes.CONTROLLER_EPOCH):
            run(ensure_path(self, path))

    async def get(self, path, watch=None):
        await _turn()
        return self.table.node(path)

    async def children(self, path, watch=None):
        await _turn()
        return self.table.children(path)

    async def multi(self, steps):
        await _turn()
        (result,) = self.table.apply_each((tuple(steps),), self.session)
        if isinstance(result, RefusedError):
            raise result
        return result

    async def write_batch(self, multis):
        results = []
        for steps in multis:
            try:
                results.append(await self.multi(steps))
            except RefusedError as refused:
                results.append(refused)
        return tuple(results)

    async def read_batch(self, paths):
        return tuple([await self.get(path) for path in paths])


@types.coroutine
def _turn():
    yield


def run(work):
    """Run one writer alone; return its result. Raises: what it raises."""
    (result,) = _Order(()).run([work])
    if isinstance(result, Exception):
        raise result
    return result


def orders(make, count=None):
    """Yield the results of the writers that `make()` returns anew for each order: `count` by chance, or all orders."""
    source = None if count is None else random.Random(count)
    chosen = []
    while chosen is not None and count != 0:
        order = _Order(chosen, source)
        yield order.run(make())
        chosen = order.next() if source is None else []
        count = None if count is None else count - 1


class _Order:
    """One way to choose whose turn it is: the first choices are given, the rest is the first or drawn.

    A drawn process begins at a time of its own: otherwise a short writer would nearly always be done before a long one.
    """

    def __init__(self, chosen, source=None):
        self._chosen, self._source = list(chosen), source
        self.taken = []  # (choice, number of choices)

    def run(self, writers):
        waiting = {number: each for number, each in enumerate(writers) if inspect.iscoroutine(each)}
        results = [None] * len(writers)
        begins = [self._source.randrange(LATEST) if self._source else 0 for _ in writers]
        while waiting:
            assert len(self.taken) < STEPS_MAX, "a writer goes on for ever"
            begun = [number for number in sorted(waiting) if begins[number] <= len(self.taken)] or sorted(waiting)
            self._step(begun[self._choose(len(begun))], waiting, results)
        return results

    def _step(self, number, waiting, results):
        try:
            waiting[number].send(None)
        except StopIteration as done:
            del waiting[number]
            results[number] = done.value
        except Exception as error:  # noqa: BLE001  it is a result
            del waiting[number]
            results[number] = error

    def _choose(self, count):
        if len(self.taken) < len(self._chosen):
            choice = self._chosen[len(self.taken)]
        else:
            choice = self._source.randrange(count) if self._source else 0
        self.taken.append((choice, count))
        return choice

    def next(self):
        """Return the choices of the next order; None behind the last."""
        taken = list(self.taken)
        while taken:
            choice, count = taken.pop()
            if choice + 1 < count:
                return [*(each for each, _ in taken), choice + 1]
        return None
