"""Leader epochs: which one began where, and where one ended."""

import pytest

from logstore.log.leader_epochs import EpochStart, LeaderEpochs


@pytest.fixture
def epochs(env, root):
    epochs = LeaderEpochs(env, str(root))
    for epoch, start in ((0, 0), (2, 10), (5, 30)):
        epochs.assign(epoch, start)
    return epochs


def test_epochs_survive_in_kafkas_file(env, root, disk, epochs):
    assert disk.read_all(root / "leader-epoch-checkpoint") == b"0\n3\n0 0\n2 10\n5 30\n"
    assert LeaderEpochs(env, str(root)).starts == epochs.starts
    assert LeaderEpochs(env, str(root)).latest == 5


def test_an_epoch_that_is_not_newer_changes_nothing(epochs):
    before = epochs.starts
    epochs.assign(5, 50)
    epochs.assign(1, 60)
    assert epochs.starts == before


def test_a_new_epoch_takes_the_place_of_those_that_wrote_nothing(epochs):
    epochs.assign(6, 40)
    epochs.assign(7, 40)
    assert epochs.starts[-2:] == (EpochStart(5, 30), EpochStart(7, 40))


@pytest.mark.parametrize(
    ("asked", "answer"), [(0, (0, 10)), (1, (0, 10)), (2, (2, 30)), (4, (2, 30)), (5, (5, 99)), (8, (5, 99))]
)
def test_an_epoch_ends_where_the_next_one_begins(epochs, asked, answer):
    assert epochs.end_offset(asked, 99) == answer


def test_an_epoch_older_than_all_has_no_end(env, root):
    epochs = LeaderEpochs(env, str(root))
    assert epochs.end_offset(3, 9) is None
    assert not epochs.is_damaged
    epochs.assign(4, 0)
    assert epochs.end_offset(3, 9) is None


def test_trimming_forgets_what_began_behind_the_end(epochs):
    epochs.trim(30)
    assert [start.epoch for start in epochs.starts] == [0, 2]
    epochs.trim(0)
    assert epochs.starts == ()


def test_nothing_is_written_where_nothing_is_trimmed(disk, epochs):
    disk.unlink(epochs.path)
    epochs.trim(31)
    assert epochs.path not in disk.names


@pytest.mark.parametrize("last", ["1 30", "2 30", "5 10", "5 9", "x"])
def test_a_file_of_epochs_that_do_not_follow_each_other_is_damaged_until_it_is_replaced(env, root, disk, epochs, last):
    disk.names[epochs.path].data[:] = f"0\n4\n0 0\n2 10\n{last}\n7 40\n".encode()
    found = LeaderEpochs(env, str(root))
    assert (found.starts, found.is_damaged) == ((), True)
    found.replace([EpochStart(3, 0)])
    assert not found.is_damaged
    found.load()
    assert (found.starts, found.is_damaged) == ((EpochStart(3, 0),), False)
