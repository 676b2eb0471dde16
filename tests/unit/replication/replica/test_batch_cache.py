"""The last appends in memory: an unbroken range, bounded, or nothing."""

from replication.replica.storage.batch_cache import APPEND_BYTES_MAX, RECENT_BYTES, BatchCache


def noted(*sizes):
    recent = BatchCache()
    for number, size in enumerate(sizes):
        recent.note(10 * number, 10 * number + 10, bytes([number]) * size)
    return recent


def test_whole_appends_from_the_one_that_holds_the_offset():
    recent = noted(3, 3, 3)
    assert recent.read(0, upper=30, max_bytes=100) == (b"\0\0\0\1\1\1\2\2\2", 30)
    assert recent.read(15, upper=30, max_bytes=100) == (b"\1\1\1\2\2\2", 30)
    assert recent.read(15, upper=30, max_bytes=1) == (b"\1\1\1", 20)
    assert recent.read(0, upper=30, max_bytes=6) == (b"\0\0\0\1\1\1", 20)


def test_nothing_above_upper_and_nothing_behind_the_end():
    recent = noted(3, 3, 3)
    assert recent.read(0, upper=20, max_bytes=100) == (b"\0\0\0\1\1\1", 20)
    assert recent.read(10, upper=15, max_bytes=100) is None
    assert recent.read(30, upper=40, max_bytes=100) is None
    assert BatchCache().read(0, upper=10, max_bytes=100) is None


def test_a_break_in_the_offsets_forgets_what_was_before():
    recent = noted(3)
    recent.note(50, 60, b"x")
    assert recent.read(0, upper=60, max_bytes=100) is None
    assert recent.read(50, upper=60, max_bytes=100) == (b"x", 60)


def test_memory_is_bounded_and_large_appends_are_left_to_the_disk():
    size = APPEND_BYTES_MAX
    recent = noted(size, size, size)
    assert recent.read(0, upper=30, max_bytes=1) is None
    assert recent.read(10, upper=30, max_bytes=2 * RECENT_BYTES)[1] == 30
    recent.note(30, 40, bytes(size + 1))
    assert recent.read(20, upper=40, max_bytes=1) is None
    assert recent.read(30, upper=40, max_bytes=1) is None


def test_the_request_that_an_append_came_in_is_let_go():
    request = bytearray(1000)
    recent = BatchCache()
    recent.note(0, 10, memoryview(request)[:3])
    request.clear()  # raises BufferError while a view of it is there
    assert recent.read(0, upper=10, max_bytes=9) == (bytes(3), 10)
