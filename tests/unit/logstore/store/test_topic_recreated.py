"""A topic with the name of a deleted one is new in every respect."""

import pyarrow as pa

import logstore


def test_what_was_on_disk_of_the_old_topic_is_not_missed_in_the_new_one(tmp_path):
    for count in (3, 1):
        with logstore.open(tmp_path / "log") as store:
            store.create_topic("t")
            store.append("t", pa.table({"value": ["v"] * count}), flush=True)
        with logstore.open(tmp_path / "log") as store:
            assert store.offsets("t")[0].end == count
            store.delete_topic("t")
