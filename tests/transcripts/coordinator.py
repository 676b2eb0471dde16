"""A group of words: its machine, a log in memory, and members by short names. The answers to members are printed.

Commands (one a line; what they print stands below them in the transcript):

    limits delay=0 size=2             settings: the initial delay, group.max.size, retention= of offsets
    join a static=x topics=t,u        a client joins, with the id it was given if it was; also session=,
                                      rebalance= (ms), protocols=range,sticky, type=, client=, old (JoinGroup before
                                      version 4), anew (it forgot its id)
    sync a a=t-0 b=t-1                a member asks for its assignment; the leader says everybody's
    beat a                            a heartbeat; `beat a generation=1` one of an earlier generation
    leave a b                         members leave; `leave static=x` by an administrator
    commit a t-0=5                    offsets; `commit - t-0=5` by nobody in the group; `text=` metadata; `keep=` ms,
                                      as old clients say it
    remove t-0 / delete / forget t    offsets or the group are to go; a topic is gone
    expire                            the check of old offsets
    tick 5000                         milliseconds pass, in one go
    hold / go / fail CODE             what is stored from now on waits / is stored / the next is not stored
    move                              the coordinator goes down, and the next one loads the log
    describe                          the group as it is
"""

from __future__ import annotations

from dataclasses import replace

from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic.state import NO_GENERATION, Group, Phase
from replication.coordinators.groups.classic.step import resume, step
from replication.coordinators.groups.messages import Answer, Append, Appended, Body, Done, Now
from replication.coordinators.groups.offsets.events import (
    Commit,
    DeleteOffsets,
    ExpireOffsets,
    ForgetTopics,
    OffsetsDone,
)
from replication.coordinators.groups.offsets.state import NO_TIME, Committed
from replication.coordinators.groups.records import Loaded, records_of
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

WALL_MS = 1_700_000_000_000


class Coordinator:
    def __init__(self) -> None:
        self.group = Group(id="g")
        self.limits = GroupSettings(group_initial_rebalance_delay_ms=0)
        self.now_ms = 0
        self.ids: dict[str, str] = {}  # short name -> member id
        self.instances: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.protocols: dict[str, str] = {}
        self.asking: dict[int, str] = {}
        self.requests = 0
        self.lives: dict[str, int] = {}
        self.records: list[tuple[bytes, bytes | None]] = []
        self.holds = False
        self.held: list[Append] = []
        self.failure = ErrorCode.NONE
        self.out: list[str] = []

    def run(self, line: str) -> list[str]:
        command, *words = line.split()
        self.out = []
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{command}")([word for word in words if "=" not in word], options)
        return self.out

    # --------------------------------------------------------------- commands

    def do_limits(self, words: list[str], options: dict[str, str]) -> None:
        names = {
            "delay": "group_initial_rebalance_delay_ms",
            "size": "group_max_size",
            "retention": "offsets_retention_ms",
        }
        self.limits = replace(self.limits, **{names[key]: int(value) for key, value in options.items()})

    def do_join(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        if "anew" in words:
            self.ids.pop(name, None)
        topics = options.get("topics", "t").split(",")
        metadata = subscription(topics)
        if "static" in options:
            self.instances[name] = options["static"]
        self.lives[name] = self.lives.get(name, 0) + 1
        self._post(
            events.Join(
                request=self._ask(name),
                member_id=self.ids.get(name, ""),
                fresh_id=f"{name}-{self.lives[name]}",
                instance_id=self.instances.get(name),
                client_id=options.get("client", ""),
                session_timeout_ms=int(options.get("session", 10_000)),
                rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
                protocol_type=options.get("type", "consumer"),
                protocols=tuple((each, metadata) for each in options.get("protocols", "range").split(",")),
                needs_known_id="old" not in words,
            )
        )

    def do_sync(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        assignments = {self.ids[key]: value.encode() for key, value in options.items() if key in self.ids}
        generation = int(options.get("generation", self.generations.get(name, 0)))
        self._post(
            events.Sync(
                request=self._ask(name),
                member_id=self.ids[name],
                generation=generation,
                instance_id=self.instances.get(name),
                protocol=options.get("protocol", self.protocols.get(name)),
                assignments=assignments,
            )
        )

    def do_beat(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        generation = int(options.get("generation", self.generations.get(name, 0)))
        self._post(
            events.Heartbeat(
                request=self._ask(name),
                member_id=options.get("id", self.ids.get(name, "")),
                generation=generation,
                instance_id=self.instances.get(name),
            )
        )

    def do_leave(self, words: list[str], options: dict[str, str]) -> None:
        leaving = [(self.ids[name], self.instances.get(name)) for name in words]
        leaving += [("", options["static"])] if "static" in options else []
        self._post(events.Leave(self._ask("leave"), tuple(leaving)))

    def do_commit(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        text, kept_ms = options.pop("text", ""), options.pop("keep", None)
        expire_ms = NO_TIME if kept_ms is None else WALL_MS + self.now_ms + int(kept_ms)
        generation = int(options.pop("generation", self.generations.get(name, NO_GENERATION)))
        offsets = {
            partition(word): Committed(int(offset), -1, text, WALL_MS + self.now_ms, expire_ms)
            for word, offset in options.items()
        }
        self._post(
            Commit(
                request=self._ask("commit" if name == "-" else name),
                offsets=offsets,
                member_id=self.ids.get(name, ""),
                generation=generation,
                instance_id=self.instances.get(name),
            )
        )

    def do_remove(self, words: list[str], options: dict[str, str]) -> None:
        self._post(DeleteOffsets(self._ask("remove"), tuple(map(partition, words))))

    def do_delete(self, words: list[str], options: dict[str, str]) -> None:
        self._post(events.DeleteGroup(self._ask("delete")))

    def do_forget(self, words: list[str], options: dict[str, str]) -> None:
        self._post(ForgetTopics(frozenset(words)))

    def do_expire(self, words: list[str], options: dict[str, str]) -> None:
        self._post(ExpireOffsets())

    def do_tick(self, words: list[str], options: dict[str, str]) -> None:
        self.now_ms += int(words[0])
        self._post(events.Ticked())

    def do_hold(self, words: list[str], options: dict[str, str]) -> None:
        self.holds = True

    def do_go(self, words: list[str], options: dict[str, str]) -> None:
        self.holds = False
        held, self.held = self.held, []
        for append in held:
            self._store(append)

    def do_fail(self, words: list[str], options: dict[str, str]) -> None:
        self.failure = ErrorCode[words[0]]

    def do_move(self, words: list[str], options: dict[str, str]) -> None:
        self._post(events.Unloaded())
        loaded = Loaded()
        for position, (key, value) in enumerate(self.records):
            loaded.apply(position, key, value)
        stored = loaded.groups.get("g", Group(id="g"))
        self._take(resume(stored, loaded.offsets.get("g", {}), self._now(), self.limits))
        self.do_describe([], {})

    def do_describe(self, words: list[str], options: dict[str, str]) -> None:
        group = self.group
        leader = f" leader {group.leader}" if group.leader else ""
        self.out.append(f"{group.phase} generation {group.generation}{leader}")
        for member in group.members.values():
            assigned = f" reads {member.assignment.decode()}" if member.assignment else ""
            client = f" of {member.client_id}" if member.client_id else ""
            self.out.append(f"  {member.id}{client}{assigned}")
        for tp, stored in group.offsets.committed.items():
            self.out.append(f"  {tp} at {stored.offset}{' ' + stored.metadata if stored.metadata else ''}")

    # ---------------------------------------------------------------- effects

    def _ask(self, name: str) -> int:
        self.requests += 1
        self.asking[self.requests] = name
        return self.requests

    def _now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def _post(self, event: events.Event) -> None:
        self._take(step(self.group, event, self._now(), self.limits))

    def _take(self, result: tuple[Group, tuple[events.Effect, ...]]) -> None:
        before = self.group.phase
        self.group, effects = result
        if self.group.phase is not before and before is not Phase.DEAD:
            self.out.append(f"[{before} -> {self.group.phase}]")
        for effect in effects:
            match effect:
                case Append():
                    self.held.append(effect) if self.holds else self._store(effect)
                case Answer():
                    self._tell(self.asking.pop(effect.request), effect.body)

    def _store(self, append: Append) -> None:
        failure, self.failure = self.failure, ErrorCode.NONE
        if failure is ErrorCode.NONE:
            position = len(self.records)
            self.records += records_of("g", append)
            self.out.append(f"stored: {type(append.write).__name__}")
            self._post(Appended(append.write, position=position))
        else:
            self.out.append(f"not stored: {type(append.write).__name__}")
            self._post(Appended(append.write, failure))

    def _tell(self, name: str, body: Body) -> None:
        match body:
            case events.Joined():
                self._joined(name, body)
            case events.Synced():
                text = f"reads {body.assignment.decode() or 'nothing'}" if not body.error else body.error.name
                self.out.append(f"{name}: {text}")
            case events.Left():
                self.out.append(f"{name}: {' '.join(error.name for error in body.errors)}")
            case OffsetsDone():
                assert name != "delete", "that is asked of a group"
                refused = "".join(f" {tp} {error.name}" for tp, error in body.refused.items())
                self.out.append(f"{name}: {body.error.name}{refused}")
            case Done():
                self.out.append(f"{name}: {body.error.name}")

    def _joined(self, name: str, body: events.Joined) -> None:
        if body.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.ids[name] = body.member_id
        if body.error:
            self.out.append(f"{name}: {body.error.name} {body.member_id}".rstrip())
            return
        self.generations[name] = body.generation
        self.protocols[name] = body.protocol
        members = ",".join(member_id for member_id, _, _ in body.members)
        assert all(metadata for _, _, metadata in body.members), "the leader is told what each subscribed to"
        self.out.append(
            f"{name}: {body.member_id} in generation {body.generation}, {body.protocol}, leader {body.leader}"
            + (f", members {members}" if members else "")
        )


def partition(word: str) -> TopicPartition:
    topic, _, number = word.rpartition("-")
    return TopicPartition(topic, int(number))


def subscription(topics: list[str]) -> bytes:
    """A consumer's metadata: version 0, topics, no user data."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"
