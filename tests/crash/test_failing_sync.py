"""An fsync fails, whichever: nothing is acknowledged behind it, and nothing that was acknowledged before is lost (S8).

The disk is as bad as kernels are: after the failure every other fsync succeeds, also of the file whose pages were
never written.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
from contextlib import suppress

import pyarrow as pa
import pytest

import logstore
from logstore import FailedStoreError
from logstore.checkpoint import FSYNC_FAILED, check_mark
from logstore.env import Env
from logstore.store.log_dir import CLEAN_MARKER, LogDir
from logstore.store.meta_properties import DirectoryOwner
from tests.crash.test_store import ROOT, WORKLOADS, Check, User
from tests.support.disk import Crash, Disk
from tests.support.partition import appended, batch, contents, make, reopen
from tests.support.repeats import times

EVERY = times(43, 7, "PYLOG_CRASH_EVERY")
SEED = int(os.environ.get("PYLOG_CRASH_SEED", str(random.SystemRandom().randrange(10_000))))


def run(workload, fails_at: int) -> User:
    disk = Disk(seed=fails_at)
    disk.mkdir(ROOT)
    for directory in (ROOT, *ROOT.parents):  # it is there for good: fsyncs of the store are counted
        disk.fsync(directory)
    disk.fsyncs = 0
    disk.fsync_fails_at = fails_at
    user = User(disk)
    try:
        user.open()
        workload(user)
    except FailedStoreError:
        pass
    return user


def check_nobody_writes(user: User) -> None:
    was_clean = user.disk.stat(ROOT / CLEAN_MARKER)  # noting that was what failed: all else is on disk
    for store in filter(None, (user.store, logstore.open(ROOT, env=user.env))):
        for info in store.topics():
            with pytest.raises(FailedStoreError):
                store.append(info.name, pa.table({"key": ["k"], "value": ["more"]}))
        with pytest.raises(FailedStoreError):
            store.create_topic("more")
        with suppress(FailedStoreError):
            store.close()
    assert user.disk.stat(ROOT / CLEAN_MARKER) == was_clean


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_s8_whichever_fsync_fails_nothing_is_acknowledged_behind_it(workload, caplog):
    caplog.set_level("CRITICAL")
    for fails_at in itertools.count(1 + SEED % EVERY, EVERY):
        user = run(workload, fails_at)
        disk = user.disk
        if disk.fsyncs < fails_at:
            break
        try:
            assert disk.stat(ROOT / FSYNC_FAILED) is not None
            check_nobody_writes(user)
            said, now_ms = user.said, user.clock.time_ms
            for kind in (Crash.LOST, Crash.KILLED):
                left = disk.after_crash(kind)
                logstore.recover(ROOT, env=Env(user.clock, left))
                assert left.stat(ROOT / FSYNC_FAILED) is None
                Check(left, copy.deepcopy(said), Crash.LOST, now_ms).run()
        except BaseException as error:
            error.add_note(f"PYLOG_CRASH_SEED={SEED} PYLOG_CRASH_EVERY={EVERY}: fsync {fails_at}")
            raise
    assert fails_at > 20


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    disk.mkdir(ROOT)
    return disk


@pytest.mark.parametrize("suffix", [".log", "t-0", ".tmp"])
def test_s8_an_fsync_that_fails_while_a_log_is_cut_takes_the_store_out_of_service(disk, suffix):
    env = Env(files=disk)
    log = make(ROOT, env)
    for epoch in range(3):
        appended(log, batch(b"%d" % epoch), leader_epoch=epoch)
    log.flush()
    disk.fsync_fails = suffix
    with pytest.raises(FailedStoreError):
        log.truncate_to(1)
    disk.fsync_fails = None
    other = reopen(log.directory, env)
    for each in (log, other):
        with pytest.raises(FailedStoreError, match="pylog recover"):
            appended(each, batch(b"x"), leader_epoch=3)
    assert [value for _, value in contents(other)] in ([b"0"], [b"0", b"1", b"2"])


def test_s8_an_fsync_that_fails_while_an_epoch_is_noted_takes_the_store_out_of_service(disk):
    env = Env(files=disk)
    log = make(ROOT, env)
    appended(log, batch(b"0"), leader_epoch=0)
    disk.fsync_fails = ".tmp"
    with pytest.raises(FailedStoreError):
        appended(log, batch(b"1"), leader_epoch=1)
    disk.fsync_fails = None
    with pytest.raises(FailedStoreError, match="pylog recover"):
        appended(log, batch(b"1"), leader_epoch=1)
    assert contents(log) == [(0, b"0")]


@pytest.mark.parametrize("suffix", ["deep", "store", ".tmp"])
def test_s8_an_fsync_that_fails_while_a_directory_becomes_a_store_takes_it_out_of_service(suffix):
    disk = Disk()
    env = Env(files=disk)
    disk.fsync_fails = suffix  # of the directory above, of the store itself, of a file in it
    with pytest.raises(FailedStoreError):
        logstore.open(ROOT, env=env)
    disk.fsync_fails = None
    store = logstore.open(ROOT, env=env)
    with pytest.raises(FailedStoreError, match="pylog recover"):
        store.create_topic("t")
    with suppress(FailedStoreError):
        store.close()
    logstore.recover(ROOT, env=env)
    with logstore.open(ROOT, env=env) as store:
        store.create_topic("t")


def test_s8_an_fsync_that_fails_while_a_broker_claims_a_directory_takes_it_out_of_service(disk):
    env = Env(files=disk)
    log_dir = LogDir.open(ROOT, read_only=False, create=True, env=env, alone_for="broker")
    disk.fsync_fails = ".tmp"
    with pytest.raises(FailedStoreError):
        log_dir.claim(DirectoryOwner(1, "a-cluster"))
    assert log_dir.owner is None
    with pytest.raises(FailedStoreError, match="pylog recover"):
        check_mark(env, ROOT)
    log_dir.close()
