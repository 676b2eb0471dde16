"""Verification reads everything that a log rests on, and names what is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore import CorruptLogError
from logstore.log.leader_epochs import epoch_starts
from logstore.tools.verify import PartitionReport, verify_store
from tests.support.partition import appended, batch
from tests.unit.logstore.store.conftest import rows

EPOCHS = "leader-epoch-checkpoint"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Epochs 0, 3 and 4, which begin at 0, 4 and 6, in several segments."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t", config={"segment.bytes": 200, "max.message.bytes": 150})
        for epoch in (0, 0, 3, 4, 4):
            appended(store.log("t", 0), batch(b"a", b"b"), leader_epoch=epoch)
    return tmp_path


def reports(path: Path) -> list[PartitionReport]:
    with logstore.open(path, mode="r") as store:
        return list(verify_store(store))


def damage(path: Path) -> list[tuple[str, int, str]]:
    return [place for report in reports(path) for place in report.damage]


def epochs(*starts: str) -> str:
    return "\n".join(["0", str(len(starts)), *starts, ""])


def test_epochs_that_fit_are_no_damage(path):
    """Also where the batches of one are gone, or its first one is not there yet."""
    assert damage(path) == []
    file = path / "t-0" / EPOCHS
    whole = file.read_text()
    assert whole == epochs("0 0", "3 4", "4 6")
    file.write_text(epochs("0 0", "3 4", "4 6", "7 10"))
    assert damage(path) == []
    with logstore.open(path) as store:
        store.delete_records("t", {0: 5})
        assert store.log("t", 0).segments()[0].base_offset > 0
    assert damage(path) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("garbage", "is no list of epochs"),
        (epochs("0 0", "4 6", "3 4"), "is no list of epochs"),
        (epochs(), "says epoch -1 at offset 0, the batch there 0"),
        (epochs("0 0", "3 4"), "says epoch 3 at offset 6, the batch there 4"),
        (epochs("0 0", "3 2", "4 6"), "says epoch 3 at offset 2, the batch there 0"),
        (epochs("0 0", "3 6", "4 8"), "says epoch 0 at offset 4, the batch there 3"),
        (epochs("0 0", "3 5", "4 6"), "says epoch 0 at offset 4, the batch there 3"),
        (epochs("0 0", "1 3", "3 4", "4 6"), "says that an epoch begins within the batch at offset 2"),
        (epochs("0 0", "1 2", "3 4", "4 6"), "says epoch 1 at offset 2, the batch there 0"),
        (epochs("0 0", "3 4", "4 6", "5 8"), "says epoch 5 at offset 8, the batch there 4"),
        (epochs("0 0", "3 4", "4 6", "5 11"), "says that epoch 5 begins behind the end of the log"),
        (None, "says epoch -1 at offset 0, the batch there 0"),
    ],
)
def test_epochs_that_do_not_fit_the_batches_are_damage_which_recovery_mends(path, text, said):
    file = path / "t-0" / EPOCHS
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    ((where, position, reason),) = damage(path)
    assert (where, position) == (str(file), 0)
    assert reason.startswith(said)
    logstore.recover(path)
    assert damage(path) == []


def test_epochs_of_a_compacted_log_fit(tmp_path):
    with logstore.open(tmp_path) as store:
        config = {"cleanup.policy": "compact", "segment.bytes": 300, "min.cleanable.dirty.ratio": 0.0}
        store.create_topic("c", config=config)
        for number in range(30):
            store.append("c", rows([f"{number}"], key=["k"]))
        assert store.compact("c", 0).rounds == 1
        log = store.log("c", 0)
        assert epoch_starts(log.files, log.files.refresh().bases)[0].start_offset > 0
    assert damage(tmp_path) == []


def test_a_damaged_journal_of_transactions_is_named_beside_the_partitions(tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
        for number in range(5):
            with store.transaction("n", batch_id=number) as transaction:
                store.append("t", rows(["v"]), transaction=transaction)
    assert damage(tmp_path) == []
    journal = tmp_path / "transactions" / "journal"
    data = bytearray(journal.read_bytes())
    data[40] ^= 1
    journal.write_bytes(data)
    partition, of_all = reports(tmp_path)
    assert (partition.topic, partition.partition, partition.damage) == ("t", 0, ())
    assert (of_all.topic, of_all.partition, of_all.segments, of_all.size_bytes) == (None, None, None, None)
    ((where, position, _),) = of_all.damage
    assert (where, position) == (str(journal), 0)


@pytest.mark.parametrize("line", ["topic_id: AAAAAAAAAAAAAAAAAAAAAA", "garbage"])
def test_damaged_metadata_of_a_partition_are_called_so(path, line):
    """And not: the topic was deleted, or recreated."""
    file = path / "t-0" / "partition.metadata"
    file.write_text(f"version: 0\n{line}\n")
    ((where, position, reason),) = damage(path)
    assert (where, position, reason) == (str(file), 0, "it names another topic")
    named = pytest.raises(CorruptLogError, match="it should say `topic_id: ")
    with logstore.open(path) as store, named:
        store.append("t", rows(["v"]))
