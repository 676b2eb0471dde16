"""The laws that hold after every event, and at the end. A violation is an AssertionError that says where and what.

The truth is what leaders have called committed: for every partition, the batches below the highest HW that a leader
ever had, as (base offset, next offset, CRC, leader epoch).

A leader may be late: it takes a request from before its pause, or works on in an epoch that the tree has left behind.
It is bound by the same truth: it has what was committed before its epoch was left, its HW passes nothing that differs
from what others have called committed, and nothing beyond that that a member of the ISR that stands has not.

Once a loss was announced that is beyond what is promised, the truth is what is left: leaders of the epochs before,
who may not know yet, add nothing to it, and what they tell is not held against it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from logstore.log.log import Log
from logstore.log.reader import ReadResult
from logstore.records.batch import batches
from replication.model.cluster import LeaderAndIsr, TopicPartition
from replication.model.state_changes import named
from replication.replica.machine import follower, isr
from tests.sim.broker import Seen, SimBroker
from tests.sim.client_laws import Copied, Read
from tests.sim.flips import sound_batches
from tests.sim.tree import Store


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    crc: int
    leader_epoch: int
    number: tuple[int, int, int]  # id and epoch of its producer, and its sequence number; -1: it has none


def read(log: Log, start: int, end: int) -> Iterator[ReadResult]:
    while start < end and (result := log.read(start, max_bytes=1 << 16, upper=end)).data:
        yield result
        start = result.next_offset


def batches_of(log: Log, start: int, end: int) -> list[Batch]:
    """Return the batches of the log in [start, end)."""
    return [batch for result in read(log, start, end) for batch in batches_in(result.data)]


def bytes_of(log: Log) -> bytes:
    return b"".join(result.data for result in read(log, 0, log.log_end_offset))


def batches_in(data: Any) -> list[Batch]:
    return [
        Batch(h.base_offset, h.next_offset, h.crc, h.leader_epoch, (h.producer_id, h.producer_epoch, h.base_sequence))
        for _, h in batches(data)
    ]


class Laws:
    """Watches brokers and tree. With `unclean` elections data may be lost, and only the rest is asserted."""

    def __init__(
        self, tree: Store, brokers: dict[int, SimBroker], tps: Sequence[TopicPartition], *, unclean: bool
    ) -> None:
        self.tree, self.brokers, self.tps, self.unclean = tree, brokers, tps, unclean
        self.committed: dict[TopicPartition, list[Batch]] = {tp: [] for tp in tps}
        self.ends = dict.fromkeys(self.committed, 0)
        self.leaders: dict[tuple[TopicPartition, int], int] = {}
        self.highest: dict[tuple[TopicPartition, int, int], int] = {}  # HW of a leader epoch in a life of the leader
        self.seen: dict[TopicPartition, LeaderAndIsr] = {}
        # Brokers that lost writes and may still count as in sync, with the epoch of the life that lost them.
        self.tainted: dict[tuple[int, TopicPartition], int] = {}
        self.last_ends: dict[tuple[int, TopicPartition], int] = {}
        self.acked: list[tuple[TopicPartition, int, int]] = []
        self.losses: list[Any] = []
        self.announced: set[str] = set()  # partitions for which a controller has said that data may be lost
        self.excused: list[TopicPartition] = []
        self.since: dict[TopicPartition, int] = {}  # the leader epoch that began with an announced loss
        self.damaged: dict[tuple[int, TopicPartition], list[Batch]] = {}  # batches with a bit that flipped
        self.ends_when_left: dict[tuple[TopicPartition, int], int] = {}  # of leader epochs that are over
        self.copied = Copied(lambda: self.is_whole)
        self.read = Read(self.ends, lambda: self.is_whole)

    def _stored(self, tp: TopicPartition) -> LeaderAndIsr:
        stored = self.tree.state(tp)
        assert stored is not None, f"{tp} has no state"
        return stored

    # ----------------------------------------------------------- what is told

    def leads(self, partition: Seen, stored: isr.Leading) -> None:
        """One leader in an epoch; it has everything that is committed, and knows of no more that is.

        If the tree has left this epoch behind: everything that was committed before that. Those who lead after it
        may have committed more, and who has its epoch cannot have that; `committed_by` says what it may do.
        """
        tp, broker, epoch = partition.tp, partition.broker.id, stored.leader_epoch
        first = self.leaders.setdefault((tp, epoch), broker)
        assert first == broker, f"{tp} epoch {epoch}: led by {first} and by {broker}"
        if self.unclean or epoch < self.since.get(tp, 0):
            return
        end = self.ends_when_left.get((tp, epoch), self.ends[tp])
        has, committed = batches_of(partition.log, 0, end), self._committed_in(tp, 0, end)
        is_beyond_promise = all((b, tp) in self.tainted for b in stored.isr) and named(tp) in self.announced
        if is_beyond_promise:  # also where nothing is missed yet: a late leader may still learn who had what
            self.since[tp] = epoch
        if has != committed:
            missing = next(a for a, b in zip(committed, [*has, None], strict=False) if a != b)
            assert is_beyond_promise, f"{tp}: leader {broker} of {stored} lacks committed {missing} and more"
            self._excuse(partition, missing.base_offset)
        known = min(partition.idle_high_watermark, partition.log.log_end_offset)
        assert known <= self.ends[tp], f"{tp}: {broker} begins with HW {known}, committed are {self.ends[tp]}"

    def _committed_in(self, tp: TopicPartition, start: int, end: int) -> list[Batch]:
        """Return the committed batches of [start, end)."""
        committed = self.committed[tp]
        return committed[bisect_left(committed, (start,)) : bisect_left(committed, (end,))]

    def _excuse(self, partition: Seen, end: int) -> None:
        """Everybody in the ISR has lost writes, and it was said that data may be lost: go on with what is left.

        That is what the new leader has below its HW, and what it has of what was committed.
        """
        tp, end = partition.tp, max(end, partition.high_watermark)
        self.excused.append(tp)
        self.committed[tp] = batches_of(partition.log, 0, end)
        self.ends[tp] = end
        self.acked = [(acked, offset, crc) for acked, offset, crc in self.acked if acked != tp or offset < end]

    def committed_by(self, partition: Seen) -> None:
        """The HW only grows within a leader epoch, unless its leader begins another life.

        Batches below the HW are committed, for ever, and with these bytes.

        A late leader commits only what every member of the ISR that stands has: it moves its HW by fetches from before
        its epoch was left, and whoever leads since then has got what was fetched.
        """
        tp, role = partition.tp, partition.role
        assert isinstance(role, isr.Leading)
        key, end = (tp, role.leader_epoch, partition.life), role.high_watermark
        start = self.highest.get(key, 0)
        assert end >= start, f"{tp}: HW went back to {end}"
        self.highest[key] = end
        if self.unclean:
            self.committed[tp], self.ends[tp] = batches_of(partition.log, 0, end), end
            return
        if role.leader_epoch < self.since.get(tp, 0):
            return
        has, known = batches_of(partition.log, start, end), self._committed_in(tp, start, end)
        new = has[len(known) :]
        where = f"{tp}: leader {partition.broker.id} of epoch {role.leader_epoch}"
        assert has[: len(known)] == known, f"{where} passes {has[: len(known)]}, committed are {known}"
        if new:
            assert new[0].base_offset == self.ends[tp], f"{where} passes {new}, committed are {self.ends[tp]}"
            if role.leader_epoch < self._stored(tp).leader_epoch:
                self._check_late(tp, new, where)
            self.committed[tp] += new
            self.ends[tp] = end

    def _check_late(self, tp: TopicPartition, new: list[Batch], where: str) -> None:
        stored = self._stored(tp)
        for member in stored.isr:
            other = self.brokers[member].partitions.get(tp)
            if (member, tp) in self.tainted or not self.brokers[member].is_up or other is None:
                continue  # of one that is down, `check` knows the end
            has = batches_of(other.log, new[0].base_offset, new[-1].next_offset)
            assert has == new, f"{where} commits {new}, {member} in {stored} has {has}"

    def obeys(self, broker: SimBroker, controller_epoch: int) -> None:
        """No broker obeys an older controller than it has obeyed."""
        assert controller_epoch >= broker.known_controller_epoch, (
            f"broker {broker.id} obeys controller epoch {controller_epoch} after {broker.known_controller_epoch}"
        )

    def lost(self, partition: Seen, effect: follower.ReportLostRecords) -> None:
        """A cut below the HW is reported before it is done; without unclean elections there is none of committed."""
        self.losses.append((partition.tp, partition.broker.id, effect))
        is_bound = not self.unclean and partition.tp not in self.since
        if is_bound and (partition.broker.id, partition.tp) not in self.tainted:
            assert effect.start >= self.ends[partition.tp], f"{partition.tp}: committed records cut: {effect}"

    def cuts(self, partition: Seen, offset: int) -> None:
        """(S3) What is cut for its damage, and committed, and sound in it, is sound elsewhere, too."""
        tp, me = partition.tp, partition.broker
        others = [sound_batches(broker, tp) for broker in self.brokers.values() if broker is not me]
        last_copies = sound_batches(me, tp).difference(*others)
        for batch in self._committed_in(tp, offset, min(self.ends[tp], partition.log_end_offset)):
            assert (batch.base_offset, batch.crc) not in last_copies, (
                f"{tp}: {me.id} cuts the last sound copy of {batch}"
            )

    def deletes(self, partition: Seen) -> None:
        """(R34) Nobody counts on it any more, and who stays has everything that is committed.

        But for an unclean election of a replica whose deletion is on its way: not told of it yet, it begins empty.
        """
        tp, broker = partition.tp, partition.broker.id
        stored = self._stored(tp)
        is_unheard = partition.known_epoch is None or partition.known_epoch < stored.leader_epoch
        is_begin = self.unclean and is_unheard and stored.isr == (broker,)
        assert broker not in stored.isr or is_begin, f"{tp}: {broker} deletes what {stored} counts on"
        self.last_ends[broker, tp] = 0

    def acknowledged(self, tp: TopicPartition, offset: int, crc: int, leader_epoch: int) -> None:
        """acks=all: it is committed now, with these bytes, whoever says so."""
        if leader_epoch < self.since.get(tp, 0):
            return
        self.acked.append((tp, offset, crc))
        if not self.unclean:
            assert offset < self.ends[tp], f"{tp}: {offset} acknowledged, committed are {self.ends[tp]}"
            found = self._committed_in(tp, offset, offset + 1)
            assert [batch.crc for batch in found] == [crc], f"{tp}: {offset} acknowledged, committed is {found}"

    def consumed(self, tp: TopicPartition, data: bytes, leader_epoch: int) -> None:
        """Every batch that is read was committed, whoever it is read from."""
        if self.unclean or leader_epoch < self.since.get(tp, 0):
            return
        for batch in batches_in(data):
            found = self._committed_in(tp, batch.base_offset, batch.base_offset + 1)
            assert found == [batch], f"{tp}: read {batch}, committed {found}"

    def booted(self, broker: SimBroker, tp: TopicPartition, log: Log) -> None:
        """A broker begins with logs that are sound to their last byte. (An index that lost pages is no harm: S6.)

        But for bits that flipped.
        """
        wrong = [damage for damage in log.verify() if str(damage.path).endswith(".log")]
        if (broker.id, tp) in self.damaged:
            return
        assert not wrong, f"{tp}: {broker.id} begins with {wrong}"

    def died(self, broker: SimBroker, *, lost_writes: bool) -> None:
        for tp in self.committed:
            partition = broker.partitions.get(tp)
            if partition is not None:  # or else it was starting, and had changed nothing yet
                self.last_ends[broker.id, tp] = partition.log_end_offset
            if lost_writes:
                self.tainted[broker.id, tp] = broker.epoch

    # ------------------------------------------------------- after every event

    def check(self, news: Sequence[TopicPartition]) -> None:
        """Cheap: a few comparisons per partition that has changed, here or in the tree, and replica."""
        for tp, stored in self.tree.states(news).items():
            if stored is not self.seen.get(tp):
                self._check_node(tp, stored)
                self.seen[tp] = stored
            for member in stored.isr:
                broker = self.brokers[member]
                partition = broker.partitions.get(tp) if broker.is_up else None
                self._check_member(tp, stored, member, partition)

    def _check_node(self, tp: TopicPartition, stored: LeaderAndIsr) -> None:
        before = self.seen.get(tp)
        if before is not None:
            assert stored.version > before.version, f"{tp}: {before} {stored}"
            assert stored.leader_epoch >= before.leader_epoch, f"{tp}: leader epoch went back: {before} {stored}"
            if stored.leader_epoch > before.leader_epoch:
                self.ends_when_left[tp, before.leader_epoch] = self.ends[tp]
            assert stored.controller_epoch >= before.controller_epoch, (
                f"{tp}: controller epoch went back: {before} {stored}"
            )
        assert stored.leader in stored.isr or stored.leader < 0, f"{tp}: {stored}"
        for (broker, partition), epoch in list(self.tainted.items()):
            registered = self.tree.epoch_of(broker)
            if partition == tp and broker not in stored.isr and registered not in (None, epoch):
                del self.tainted[broker, partition]

    def _check_member(self, tp: TopicPartition, stored: LeaderAndIsr, member: int, partition: Seen | None) -> None:
        """Each member of the ISR has all that is committed; a leader waits for each of them."""
        end = partition.log_end_offset if partition else self.last_ends.get((member, tp), 0)
        if end < self.ends[tp] and not self.unclean:
            assert (member, tp) in self.tainted, (
                f"{tp}: {member} is in {stored} with {end} of {self.ends[tp]} committed records"
            )
        if partition is None or partition.role is None:
            return
        assert partition.high_watermark <= end, f"{tp}: HW {partition.high_watermark} > end {end} at {member}"
        role = partition.role
        if isinstance(role, isr.Leading) and role.leader_epoch == stored.leader_epoch:
            counted = {*role.isr, *(role.proposed or ())}
            assert counted >= set(stored.isr), f"{tp}: {member} counts on {counted}, stored is {stored}"

    def may_lose_writes(self, broker: int) -> bool:
        """Does another candidate for leader have everything? Then this one's unsynced bytes may go."""
        for tp, stored in self.tree.states(self.tps).items():
            if not any(self._is_good_copy(other, tp) for other in stored.isr if other != broker):
                return False
        return True

    def _is_good_copy(self, broker: int, tp: TopicPartition) -> bool:
        if (broker, tp) in self.tainted or (broker, tp) in self.damaged:
            return False
        other = self.brokers[broker]
        partition = other.partitions.get(tp) if other.is_up else None
        end = partition.log_end_offset if partition else self.last_ends.get((broker, tp), 0)
        return end >= self.ends[tp]

    # ------------------------------------------------------------- at the end

    def is_all_well(self, *, are_told: bool = False) -> bool:
        try:
            self.check_end(are_told=are_told)
        except (AssertionError, KeyError):
            return False
        return True

    def check_end(self, *, are_told: bool = True) -> None:
        """All are well again: everything is led, in sync, the same everywhere, and nothing acknowledged is missing."""
        assert not self.tree.plans, f"not over: {self.tree.plans}"
        for tp, stored in self.tree.states(self.tps).items():
            replicas = self.tree.replicas(tp)
            assert stored.leader in replicas, f"{tp}: no leader at the end: {stored}"
            assert set(stored.isr) == set(replicas), f"{tp}: ISR is not full at the end: {stored}"
            logs = {b: self.brokers[b].partitions[tp].log for b in replicas}
            end = logs[stored.leader].log_end_offset
            content = {b: bytes_of(log) for b, log in logs.items()}
            for broker, log in logs.items():
                wrong = [damage for damage in log.verify() if str(damage.path).endswith(".log")]
                assert not wrong, f"{tp}: {broker} is damaged at the end: {wrong}"
            for broker, data in content.items():
                assert data == content[stored.leader], f"{tp}: {broker} differs from leader {stored.leader}"
                partition = self.brokers[broker].partitions[tp]
                assert not are_told or partition.high_watermark == end, (
                    f"{tp}: HW {partition.high_watermark} at {broker}, end {end}, {stored}, {partition.role}"
                )
            has = batches_in(content[stored.leader])
            numbered = [batch.number for batch in has if batch.number[2] >= 0]
            assert not are_told or len(numbered) == len(set(numbered)), f"{tp}: appended twice: {numbered}"
            if not self.unclean:
                assert has[: len(self.committed[tp])] == self.committed[tp]
                crcs = {batch.base_offset: batch.crc for batch in has}
                for acked, offset, crc in self.acked:
                    assert acked != tp or crcs.get(offset) == crc, f"{tp}: acknowledged {offset} is gone"

    def check_copies(self, content: Mapping[TopicPartition, Sequence[bytes]]) -> None:
        """`content`: the committed values."""
        if self.is_whole:
            self.copied.check_end(content)

    @property
    def is_whole(self) -> bool:
        """No loss was announced."""
        return not (self.unclean or self.excused or self.since)
