"""When a broker's process looks for garbage: what is in a cycle goes, in a minute or in an hour."""

import gc
import weakref

import pytest

from replication.broker import garbage


class Thing:
    """Holds itself."""

    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def as_before():
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_was_made_since_the_last_time_goes_at_the_next():
    garbage.begin()
    garbage.collect(is_all=False)
    found = weakref.ref(Thing())
    garbage.collect(is_all=False)
    assert found() is None


def test_what_lived_at_some_time_goes_when_all_is_looked_through():
    garbage.begin()
    thing = Thing()
    found = weakref.ref(thing)
    garbage.collect(is_all=False)
    del thing
    garbage.collect(is_all=False)
    assert found() is not None
    garbage.collect(is_all=True)
    assert found() is None
