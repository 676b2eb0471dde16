"""Groups."""

from tests.conformance.kafka4.walks.place import walked
from tests.support.asker import until


@walked("groups list")
def groups_list(place):
    group = place.read_by("listed-group", place.made("read-1"))
    rows = {row["group"]: row for row in place.json("groups", "list")}
    assert (rows[group]["state"], rows[group]["type"]) == ("Empty", "classic")
    assert place.json("groups", "list", "--state", "Dead") == []


@walked("groups describe")
def groups_describe(place):
    group = place.read_by("described-group", place.made("read-2", 8))
    (row,) = place.json("groups", "describe", group)
    assert (row["topic"], row["current_offset"], row["log_end_offset"], row["lag"]) == ("read-2", 6, 8, 2)
    (state,) = place.json("groups", "describe", group, "--state")
    assert (state["state"], state["members"]) == ("Empty", 0)


@walked("groups members")
def groups_members(place):
    topic = place.made("read-3", 6, 2)
    with place.client.consumer(topic, "members-group", auto_offset_reset="earliest") as consumer:
        until(lambda: consumer.poll(100) is not None)
        (row,) = place.json("groups", "members", "--group", "members-group")
        assert (row["partitions"], row["assignment"]) == (2, [f"{topic}-0", f"{topic}-1"])
    assert place.json("groups", "members", "--group", "members-group") == []


@walked("groups reset-offsets")
def groups_reset_offsets(place):
    group = place.read_by("reset-group", place.made("read-4"))
    reset = ("groups", "reset-offsets", "--group", group, "--all-topics")
    for to, offset in (
        (("--to-earliest",), 0),
        (("--to-latest",), 6),
        (("--shift-by", -2), 4),
        (("--to-offset", 3), 3),
        (("--to-current",), 3),
        (("--by-duration", "PT1H"), 0),
        (("--to-datetime", "2020-01-01T00:00:00.000"), 0),
    ):
        assert [row["new_offset"] for row in place.json(*reset, *to, "--execute")] == [offset], to
        assert [row["current_offset"] for row in place.json("groups", "describe", group)] == [offset]
    assert place.run(*reset, "--to-latest", "--export").ok().lines == ["read-4,0,6"]


@walked("groups delete-offsets")
def groups_delete_offsets(place):
    group = place.read_by("offsets-group", place.made("read-5"))
    assert len(place.json("groups", "delete-offsets", "--group", group, "--topic", "read-5")) == 1
    assert place.client.committed(group) == {}


@walked("groups delete")
def groups_delete(place):
    group = place.read_by("deleted-group", place.made("read-6"))
    assert place.run("groups", "delete", group).ok().err == "deleted 1 group\n"
    assert group not in {row["group"] for row in place.json("groups", "list")}
    assert "not found" in place.run("groups", "delete", group).failed()
