"""ControllerLoop: runs for controller, watches the tree, and performs the effects of the controller's machine.

It takes one event at a time: step, keep the new state, perform the effects in order, post their outcomes as events.
An unknown outcome (after a lost connection) is looked up before it is posted. Everything that a term began ends with
it.

`begin` and `end` frame one session with the coordination store. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from logstore.env import Clock
from replication.controller.channels import BrokerChannels, Call
from replication.controller.machine import events
from replication.controller.machine.state import Controller, ControllerSettings
from replication.controller.machine.step import step
from replication.controller.tree_writer import RETRY_S, TreeWriter, repeat
from replication.controller.watches import Look, Watches
from replication.coordination import cluster, nodes, topic_nodes
from replication.coordination.tree import ConnectionLossError, CoordinationError, SessionExpiredError, Tree
from replication.model.cluster import BrokerId, BrokerInfo, TopicPartition
from replication.model.state_changes import ControllerLines, StateChange

logger = logging.getLogger(__name__)

TICK_S = 1.0
FAILED_PAUSE_S = 2.0  # after an unexpected failure, so that another broker becomes the controller


class ControlledShutdownError(CoordinationError):
    """The outcome of a controlled shutdown is unknown: ask the controller again."""


class StaleBrokerError(CoordinationError):
    """A request to stop a broker does not name the epoch of its present life."""

    def __init__(self, broker: BrokerId) -> None:
        super().__init__(f"broker {broker} does not live in this epoch", broker=broker)


class _Term:
    def __init__(self, term: cluster.Term, channels: BrokerChannels, watches: Watches, writer: TreeWriter) -> None:
        self.term = term
        self.watches = watches
        self.channels = channels
        self.writer = writer
        self.tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self.loaded = asyncio.Event()
        self.shutdowns: dict[int, asyncio.Future[tuple[TopicPartition, ...]]] = {}

    def end(self) -> None:
        self.channels.close()
        for task in tuple(self.tasks):
            task.cancel()
        for answer in self.shutdowns.values():
            if not answer.done():
                answer.set_exception(ControlledShutdownError("this broker is no longer the controller"))


class ControllerLoop:
    def __init__(
        self,
        broker: BrokerId,
        limits: ControllerSettings,
        call: Call,
        log: Callable[[StateChange], None],
        clock: Clock,
    ) -> None:
        self.broker = broker
        self.state = Controller(broker=broker)
        self.unclean_elections = 0
        self.limits = limits
        self._call = call
        self._log = log
        self._clock = clock
        self._tree: Tree | None = None
        self._term: _Term | None = None
        self._campaign: asyncio.Task[None] | None = None
        self._alarms: dict[asyncio.Event, None] = {}
        self._pause_s = 0.0  # before this broker runs for controller again
        self._requests = itertools.count(1)

    @property
    def is_active(self) -> bool:
        """Return whether this broker is the controller and has read the tree."""
        return self.state.is_active

    # ------------------------------------------------------------- the session

    def begin(self, tree: Tree) -> None:
        self._tree = tree
        self._campaign = asyncio.get_running_loop().create_task(self._run_for_controller(tree))
        self._campaign.add_done_callback(_campaign_ended)

    def look_again(self) -> None:
        """Read everything again after the store was silent: its watches are gone, though the session lasts."""
        if self._term is not None:
            self._term.watches.forget()
        for alarm in tuple(self._alarms):
            alarm.set()

    async def end(self) -> None:
        """End the term and the campaign: the session is over, or about to be closed."""
        if self._campaign is not None:
            self._campaign.cancel()
            await asyncio.gather(self._campaign, return_exceptions=True)
            self._campaign = None
        self._end_term()
        self.post(events.Resigned())
        self._tree = None

    async def _run_for_controller(self, tree: Tree) -> None:
        """Create /controller whenever it does not exist; resign when it is not ours any more."""
        alarm = self._new_alarm()
        try:
            while True:
                alarm.clear()
                try:
                    await self._look_at_controller(tree, alarm)
                    await alarm.wait()
                except SessionExpiredError:
                    return
                except CoordinationError as error:
                    logger.warning("[Controller %d]: election delayed: %s", self.broker, error)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._alarms.pop(alarm, None)

    async def _look_at_controller(self, tree: Tree, alarm: asyncio.Event) -> None:
        found = await tree.get(nodes.CONTROLLER, lambda path: alarm.set())
        is_mine = found is not None and found.owner == tree.session
        if is_mine and self._term is not None:
            return
        if self._term is not None:
            self._end_term()
            self.post(events.Resigned())
        if is_mine:  # created by a call whose answer was lost, or in a term that has ended
            await cluster.resign(tree)
        elif found is None:
            await asyncio.sleep(self._pause_s)
            self._pause_s = 0.0
            term = await cluster.become_controller(tree, self.broker, self._clock.now_ms())
            if term is not None:
                self._begin_term(tree, term)
                alarm.clear()
                await self._look_at_controller(tree, alarm)

    # ---------------------------------------------------------------- the term

    def _begin_term(self, tree: Tree, term: cluster.Term) -> None:
        me, epoch = self.broker, term.controller_epoch
        logger.info("[Controller %d]: Broker %d starting become controller state transition", me, me)
        logger.info("[Controller %d]: Controller %d incremented epoch to %d", me, me, epoch)
        lines = ControllerLines(me, epoch)
        channels = BrokerChannels(lines, self._call, self._find, self._log, self._brokers_answered, self._spawn)
        watches = Watches(tree, lambda: self.state)
        self._term = _Term(term, channels, watches, TreeWriter(me, tree, term, watches, self.post))
        self.post(events.Elected(epoch))

    def _find(self, broker: BrokerId) -> BrokerInfo | None:
        return self.state.brokers.get(broker)

    def _end_term(self) -> None:
        if self._term is not None:
            epoch = self._term.term.controller_epoch
            logger.info("[Controller %d]: Controller resigned, epoch %d", self.broker, epoch)
            self._term.end()
            self._term = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task of the term; FencedError ends that. After an unexpected failure another broker shall lead on."""
        assert self._term is not None
        term = self._term
        task = asyncio.get_running_loop().create_task(work)
        term.tasks[task] = None

        def ended(task: asyncio.Task[None]) -> None:
            term.tasks.pop(task, None)
            error = None if task.cancelled() else task.exception()
            if error is None or isinstance(error, SessionExpiredError):
                return
            if not isinstance(error, cluster.FencedError):
                logger.error("[Controller %d]: resigning after an unexpected failure", self.broker, exc_info=error)
                self._pause_s = FAILED_PAUSE_S
            if self._term is term:
                self.post(events.Fenced())

        task.add_done_callback(ended)
        return task

    def _brokers_answered(self, event: events.ReplicasDeleted | None) -> None:
        if event is None:
            logger.warning("[Controller %d]: a broker knows a later controller", self.broker)
        self.post(events.Fenced() if event is None else event)

    def post(self, event: events.Event) -> None:
        """Take an event: decide, keep the state, perform the effects."""
        self.state, effects = step(self.state, event, self.limits)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: events.Effect) -> None:
        if isinstance(effect, StateChange):
            self.unclean_elections += effect.level == "WARN"
            self._log(effect)
            return
        if isinstance(effect, events.Resign):
            self._end_term()
            self.look_again()  # the campaign finds our node without a term, and deletes it
            return
        assert self._term is not None, f"{effect} without a term"
        assert self._tree is not None, f"{effect} without a session"
        self._perform_in_term(effect, self._term, self._tree)

    def _perform_in_term(self, effect: events.Effect, term: _Term, tree: Tree) -> None:
        match effect:
            case events.SendLeaderAndIsr() | events.SendUpdateMetadata() | events.SendStopReplica():
                term.channels.send(effect)
            case events.AnswerControlledShutdown(request, remaining):
                with suppress(KeyError, asyncio.InvalidStateError):  # the request may have been cancelled
                    term.shutdowns.pop(request).set_result(remaining)
            case events.LoadContext():
                self._spawn(self._load(tree, term))
            case _:
                self._spawn(term.writer.perform(effect))

    async def shut_down(self, broker: BrokerId, broker_epoch: int) -> tuple[TopicPartition, ...]:
        """Move the leaderships of a broker that wants to stop; return those that remain.

        Raises: ControlledShutdownError: this broker is not the controller (any more); StaleBrokerError.
        """
        if self._term is None or not self.is_active:
            raise ControlledShutdownError("this broker is not the controller")
        live = self.state.brokers.get(broker)
        if live is None or live.epoch != broker_epoch:
            raise StaleBrokerError(broker)  # an old request, or a forged one
        logger.info("[Controller %d]: Shutting down broker %d", self.broker, broker)
        request = next(self._requests)
        answer = asyncio.get_running_loop().create_future()
        self._term.shutdowns[request] = answer
        self.post(events.ControlledShutdownRequested(broker, request))
        remaining: tuple[TopicPartition, ...] = await answer
        return remaining

    # --------------------------------------------------------------- the tree

    async def _load(self, tree: Tree, term: _Term) -> None:
        """Set the watches, then read everything; then continue with what the watches report."""
        looks = term.watches.looks()
        armed = [asyncio.get_running_loop().create_future() for _ in looks]
        for look, is_set in zip(looks, armed, strict=True):
            self._spawn(self._watch(term, look, is_set))
        await asyncio.gather(*armed)
        for name in await repeat(lambda: topic_nodes.clean_orphans(tree, term.term)):
            logger.warning("[Controller %d]: deleted the id of topic %s, which does not exist", self.broker, name)
        found = await repeat(lambda: cluster.read_cluster(tree))
        logger.info(
            "[Controller %d]: Controller %d ready to serve as the new controller with epoch %d: brokers %s, %d topics",
            self.broker,
            self.broker,
            term.term.controller_epoch,
            ",".join(map(str, sorted(found.brokers))),
            len(found.topics),
        )
        self.post(events.ContextLoaded(found, self._clock.monotonic_ms()))
        term.loaded.set()
        self._spawn(self._tick())

    async def _watch(self, term: _Term, look: Look, armed: asyncio.Future[None]) -> None:
        alarm = self._new_alarm()
        try:
            while True:
                alarm.clear()
                await self._look(term, look, armed, alarm)
        finally:
            self._alarms.pop(alarm, None)

    async def _look(self, term: _Term, look: Look, armed: asyncio.Future[None], alarm: asyncio.Event) -> None:
        try:
            found = await look(lambda path: alarm.set())
            if armed.done():
                for event in found:
                    if isinstance(event, events.BrokersChanged):
                        self._log_brokers({info.id: info for info in event.live})
                    self.post(event)
            else:
                armed.set_result(None)  # `_load` reads everything again
                await term.loaded.wait()
            await alarm.wait()
        except SessionExpiredError:
            raise
        except CoordinationError as error:
            logger.warning("[Controller %d]: %s", self.broker, error)
            if isinstance(error, ConnectionLossError):
                await asyncio.sleep(RETRY_S)
            else:  # a malformed node: wait until it is corrected
                if not armed.done():
                    armed.set_result(None)
                    await term.loaded.wait()
                await alarm.wait()

    def _new_alarm(self) -> asyncio.Event:
        alarm = asyncio.Event()
        self._alarms[alarm] = None
        return alarm

    def _log_brokers(self, found: dict[BrokerId, BrokerInfo]) -> None:
        known = self.state.brokers
        logger.info(
            "[BrokerChangeListener on Controller %d]: Newly added brokers: %s, deleted brokers: %s, "
            "all live brokers: %s",
            self.broker,
            ",".join(str(b) for b in sorted(found) if b not in known or known[b].epoch != found[b].epoch),
            ",".join(str(b) for b in sorted(known) if b not in found or known[b].epoch != found[b].epoch),
            ",".join(map(str, sorted(found))),
        )

    async def _tick(self) -> None:
        while True:
            self.post(events.Ticked(self._clock.monotonic_ms()))
            await asyncio.sleep(TICK_S)


def _campaign_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("this broker does not run for controller any more", exc_info=task.exception())
