"""The coordination store: nodes in memory, and sessions with it that end, are cut off, and lose answers.

`Store` is what brokers agree on; `SimTree` is one session, as `replication.coordination.tree` promises it. A session
gets its events in their order. While it is cut off its calls fail, and what was in flight is done or not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from replication.coordination import nodes
from replication.coordination.tree import (
    ANY_VERSION,
    BadVersionError,
    Check,
    ConnectionLossError,
    Create,
    Delete,
    Done,
    EphemeralParentError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RefusedError,
    SessionEvent,
    SessionExpiredError,
    SetData,
    Step,
    Tree,
    check_path,
    check_steps,
)
from replication.model.cluster import NO_LEADER, Assignment, Election, LeaderAndIsr, Reassignment, TopicPartition
from tests.sim.network import Channel
from tests.sim.world import LIFE, Life, World

LOOK_MS = 50
HOST = "tree"

_state_path = functools.cache(nodes.state_path)


@dataclass(slots=True)
class _Node:
    node: Node
    children: dict[str, None] = field(default_factory=dict)
    made: int = 0


class Store:
    """`number` counts the changes. `checks_controller_epoch` is false in one of the mutants."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.number = 0
        self.sessions: dict[int, SimTree] = {}
        self.checks_controller_epoch = True
        self._nodes: dict[str, _Node] = {"/": _Node(Node(b"", 0, 0))}
        self._watches: dict[tuple[str, bool], list[tuple[SimTree, Callable[[str], None]]]] = {}
        self._session_numbers = itertools.count(1)
        self._undo: list[Callable[[], object]] = []
        self._touched: dict[tuple[str, bool], None] = {}
        self._seen: dict[str, tuple[int, Any]] = {}
        world.after(LOOK_MS, self._look)

    async def open(self, address: str, *, on_session, session_timeout_ms: int, **_: Any) -> SimTree:
        tree = SimTree(self, next(self._session_numbers), LIFE.get(), on_session, session_timeout_ms)
        await tree.call(lambda: self.sessions.setdefault(tree.session, tree), is_first=True)
        return tree

    def _look(self) -> None:
        for session in tuple(self.sessions.values()):
            session.look()
        self.world.after(LOOK_MS, self._look)

    # ------------------------------------------------------------------ nodes

    def node(self, path: str) -> Node | None:
        found = self._nodes.get(path)
        return None if found is None else found.node

    def children(self, path: str) -> tuple[str, ...]:
        if path not in self._nodes:
            raise NoNodeError(path)
        return tuple(sorted(self._nodes[path].children))

    def watch(self, path: str, session: SimTree, watch: Callable[[str], None] | None, *, children: bool) -> None:
        if watch is not None:
            waiting = self._watches.setdefault((path, children), [])
            if (session, watch) not in waiting:
                waiting.append((session, watch))

    def forget_watches(self, session: SimTree) -> None:
        for key, waiting in tuple(self._watches.items()):
            self._watches[key] = [each for each in waiting if each[0] is not session]

    def apply(self, steps: Sequence[Step], session: int = 0) -> tuple[Done, ...]:
        """All of them, or none."""
        self.number += 1
        self._undo, self._touched = [], {}
        done = []
        for index, step in enumerate(steps):
            try:
                done.append(self._apply(step, session))
            except RefusedError as refused:
                for undo in reversed(self._undo):
                    undo()
                refused.index = index
                raise
        for path, is_children in self._touched:
            for watching, watch in self._watches.pop((path, is_children), ()):
                watching.tell(watch, path)
        return tuple(done)

    def _apply(self, step: Step, session: int) -> Done:
        match step:
            case Check(path, version):
                if self.checks_controller_epoch or path != nodes.CONTROLLER_EPOCH:
                    self._require(path, version)
                return Done(path)
            case SetData(path, data, version):
                found = self._require(path, version)
                self._put(path, found, found.node.version + 1, data)
                return Done(path, found.node.version)
            case Delete(path, version):
                if self._require(path, version).children:
                    raise NotEmptyError(path)
                self._remove(path)
                return Done(path)
            case Create():
                return Done(self._create(step, session), 0)

    def _require(self, path: str, version: int) -> _Node:
        found = self._nodes.get(path)
        if found is None:
            raise NoNodeError(path)
        if version not in (ANY_VERSION, found.node.version):
            raise BadVersionError(path)
        return found

    def _put(self, path: str, found: _Node, version: int, data: bytes) -> None:
        before = found.node
        self._undo.append(lambda: setattr(found, "node", before))
        found.node = Node(data, version, before.creation, before.owner)
        self._touched[path, False] = None
        if path.startswith((nodes.TOPICS, nodes.CONTROLLER, nodes.REASSIGNMENT)):
            self.world.note(f"tree: {path} {data.decode()}")

    def _create(self, step: Create, session: int) -> str:
        parent = step.path.rpartition("/")[0] or "/"
        above = self._nodes.get(parent)
        if above is None:
            raise NoNodeError(step.path)
        if above.node.owner:
            raise EphemeralParentError(step.path)
        path = f"{step.path}{above.made:010}" if step.sequence else step.path
        if path in self._nodes:
            raise NodeExistsError(path)
        name = path.rpartition("/")[2]
        self._nodes[path] = _Node(Node(step.data, 0, self.number, session if step.ephemeral else 0))
        above.children[name] = None
        above.made += 1
        self._undo += [lambda: self._nodes.pop(path), lambda: above.children.pop(name)]
        self._touched.update({(path, False): None, (path, True): None, (parent, True): None})
        return path

    def _remove(self, path: str) -> None:
        gone, above = self._nodes.pop(path), self._nodes[parent := path.rpartition("/")[0] or "/"]
        name = path.rpartition("/")[2]
        del above.children[name]
        self._undo += [lambda: self._nodes.update({path: gone}), lambda: above.children.update({name: None})]
        self._touched.update({(path, False): None, (path, True): None, (parent, True): None})

    def end_session(self, number: int) -> None:
        if self.sessions.pop(number, None) is not None:
            mine = [path for path, found in self._nodes.items() if found.node.owner == number]
            self.world.note(f"tree: session {number} is over, and {mine}")
            if mine:
                self.apply([Delete(path) for path in mine])

    # --------------------------------------------------- as laws and tools see it

    def _decoded(self, path: str, decode: Callable[[Node], Any], default: Any) -> Any:
        found = self._nodes.get(path)
        if found is None:
            return default
        seen = self._seen.get(path)
        if seen is None or seen[0] is not found.node:
            seen = self._seen[path] = found.node, decode(found.node)
        return seen[1]

    def state(self, tp: TopicPartition) -> LeaderAndIsr | None:
        return self._decoded(_state_path(tp), lambda node: nodes.decode_state(tp, node), None)

    def states(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        return {tp: found for tp in tps if (found := self.state(tp)) is not None}

    def replicas(self, tp: TopicPartition) -> Assignment:
        topic = self._decoded(nodes.topic_path(tp.topic), lambda node: nodes.decode_topic(tp.topic, node.data), {})
        return topic.get(tp.partition, ())

    @property
    def plans(self) -> dict[TopicPartition, Reassignment]:
        return self._decoded(nodes.REASSIGNMENT, lambda node: nodes.decode_reassignment(node.data), {})

    @property
    def controller(self) -> int | None:
        return self._decoded(nodes.CONTROLLER, lambda node: nodes.decode_controller(node.data), None)

    @property
    def controller_epoch(self) -> int:
        return self._decoded(nodes.CONTROLLER_EPOCH, lambda node: nodes.decode_controller_epoch(node.data), 0)

    def epoch_of(self, broker: int) -> int | None:
        """That of its present life."""
        path = nodes.broker_path(broker)
        return self._decoded(path, lambda node: nodes.decode_broker(broker, node).epoch, None)

    def has_lost_writes(self, broker: int) -> bool:
        found = self.node(nodes.broker_path(broker))
        return found is not None and nodes.decode_broker(broker, found).lost_writes

    def ask_for_unclean(self, tps: Sequence[TopicPartition]) -> None:
        """Unclean elections where nobody leads, unless others are under way."""
        leaderless = tuple(tp for tp, state in self.states(tps).items() if state.leader == NO_LEADER)
        if leaderless and nodes.ELECTION not in self._nodes:
            election = Election(leaderless, is_unclean=True)
            self.apply([Create(nodes.ELECTION, nodes.encode_election(election))])

    def remove_controller(self) -> None:
        """By hand: its session lives on."""
        if nodes.CONTROLLER in self._nodes:
            self.apply([Delete(nodes.CONTROLLER)])


class SimTree(Tree):
    """One session. A new `_connection` forgets what was in flight on the former one."""

    def __init__(self, store: Store, session: int, life: Life, on_session: Any, timeout_ms: int) -> None:
        self.session, self.token = session, b"%d" % session
        self._store, self._world, self._life = store, store.world, life
        self._on_session, self._timeout_ms = on_session, timeout_ms
        self._state = SessionEvent.CONNECTED
        self._seen_ms = self._world.now_ms
        self.lease_end_ms = self._seen_ms + timeout_ms
        self._calls: dict[Any, None] = {}
        self._connect()

    def _connect(self) -> None:
        self._out = Channel(self._world, self._life.host, HOST, None)
        self._in = Channel(self._world, HOST, self._life.host, self._life)

    # -------------------------------------------------------------- the session

    @property
    def _is_reachable(self) -> bool:
        cuts, host = self._world.cuts, self._life.host
        return not (self._life.is_over or self._life.is_paused or (host, HOST) in cuts or (HOST, host) in cuts)

    def look(self) -> None:
        """The store looks for silence; the session for the store."""
        now_ms = self._world.now_ms
        if self._is_reachable:
            self._seen_ms, self.lease_end_ms = now_ms, now_ms + self._timeout_ms
            if self._state is SessionEvent.SUSPENDED:
                self._connect()
                self._become(SessionEvent.CONNECTED)
            return
        if now_ms - self._seen_ms > self._timeout_ms:
            self._store.end_session(self.session)
            if not self._life.is_over:
                self._find_out()
        elif now_ms - self._seen_ms > self._timeout_ms // 3 and not (self._life.is_over or self._life.is_paused):
            self._suspend()

    def _find_out(self) -> None:
        """It is over: the broker hears that when it reaches the store."""
        if not self._is_reachable and not self._life.is_over:
            self._suspend()
            self._world.after(LOOK_MS, self._find_out)
        else:
            self._become(SessionEvent.EXPIRED)

    def _suspend(self) -> None:
        if self._state is SessionEvent.CONNECTED and not self._life.is_paused:
            self._out.drop()
            self._in.drop()
            self._store.forget_watches(self)
            self._become(SessionEvent.SUSPENDED)

    def _become(self, state: SessionEvent) -> None:
        if self._state in (state, SessionEvent.EXPIRED):
            return
        self._state = state
        self._life.soon(self._tell_session, state)

    def _tell_session(self, state: SessionEvent) -> None:
        if state is not SessionEvent.CONNECTED:
            error = ConnectionLossError("cut off") if state is SessionEvent.SUSPENDED else SessionExpiredError()
            calls, self._calls = self._calls, {}
            for call in calls:
                if not call.done():
                    call.set_exception(error)
        self._on_session(state)

    def tell(self, act: Callable[..., object], *args: Any) -> None:
        if self._state is not SessionEvent.SUSPENDED:
            self._in.send(act, *args)

    # ------------------------------------------------------------------- calls

    async def call(self, work: Callable[[], Any], *, is_first: bool = False) -> Any:
        if self._state is SessionEvent.EXPIRED:
            raise SessionExpiredError
        if self._state is SessionEvent.SUSPENDED:
            raise ConnectionLossError("suspended")
        answer = self._world.loop.create_future()
        self._calls[answer] = None
        self._out.send(self._perform, answer, work, is_first)
        try:
            return await answer
        finally:
            self._calls.pop(answer, None)

    def _perform(self, answer: Any, work: Callable[[], Any], is_first: bool) -> None:
        if self.session not in self._store.sessions and not is_first:
            self._become(SessionEvent.EXPIRED)
            return
        try:
            found = work()
        except RefusedError as refused:
            self.tell(_fail, answer, refused)
        else:
            self.tell(_settle, answer, found)

    def excuse(self, stands_for_a_reason: Callable[[], bool]) -> None: ...

    async def multi(self, steps: Sequence[Step]) -> tuple[Done, ...]:
        checked = check_steps(steps)
        return await self.call(lambda: self._store.apply(checked, self.session))

    async def write_batch(self, multis: Sequence[Sequence[Step]]):
        def each():
            for steps in multis:
                try:
                    yield self._store.apply(steps, self.session)
                except RefusedError as refused:
                    yield refused

        return await self.call(lambda: tuple(each()))

    async def get(self, path: str, watch=None) -> Node | None:
        check_path(path)

        def read() -> Node | None:
            self._store.watch(path, self, watch, children=False)
            return self._store.node(path)

        return await self.call(read)

    async def children(self, path: str, watch=None) -> tuple[str, ...]:
        def read() -> tuple[str, ...]:
            found = self._store.children(path)
            self._store.watch(path, self, watch, children=True)
            return found

        return await self.call(read)

    async def read_batch(self, paths: Sequence[str]) -> tuple[Node | None, ...]:
        return await self.call(lambda: tuple(map(self._store.node, paths)))

    async def end_session(self, token: bytes) -> None:
        await self.call(lambda: self._store.end_session(int(token)))

    async def close(self) -> None:
        if self._state is not SessionEvent.EXPIRED:
            self._state = SessionEvent.EXPIRED
            self._out.send(self._store.end_session, self.session)
            self._life.soon(self._tell_closed)

    def _tell_closed(self) -> None:
        for call in tuple(self._calls):
            _fail(call, SessionExpiredError())


def _settle(future, found) -> None:
    if not future.done():
        future.set_result(found)


def _fail(future, error) -> None:
    if not future.done():
        future.set_exception(error)
