"""A keyed topic as a table of its latest values, wherever its records are."""

from __future__ import annotations

import pytest

import datasource
from datasource.jobs import tiering
from tests.spark.test_typed import declare
from tests.support.repeats import only_long

pytestmark = pytest.mark.spark


def values(frame) -> dict[str, str]:
    """Each key with its value; a key that comes twice would be seen."""
    found = [(row.key.decode(), row.value.decode()) for row in frame.select("key", "value").collect()]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture
def users(topics):
    topics.create("users", partitions=2)
    topics.append("users", ["1", "1", "1", "gone", "no key"], key=["ada", "bob", "cid", "dan", None])
    topics.append("users", ["2", None, "2"], key=["ada", "dan", "cid"])
    return topics


def test_each_key_comes_once_with_its_last_value(spark, users, read):
    view = read(subscribe="users", view="latest")
    assert values(view) == {"ada": "2", "bob": "1", "cid": "2"}
    assert values(view.where("value = '1'")) == {"bob": "1"}  # the last record of cid is another one
    assert datasource.count(spark, **users.options, subscribe="users", view="latest") == 3
    users.append("users", ["3", "back"], key=["bob", "dan"])
    assert values(read(subscribe="users", view="latest")) == {"ada": "2", "bob": "3", "cid": "2", "dan": "back"}
    assert read(subscribe="users", view="latest", columns="partition").count() == 4
    typed = {"value.format": "json", "key.fields": "name", "key.format": "raw", "value.fields-include": "EXCEPT_KEY"}
    users.append("users", ['{"visits": 5}'] * 4, key=["ada", "bob", "cid", "dan"])
    rows = read("name string, visits int", subscribe="users", view="latest", **typed).where("name > 'b'").collect()
    assert sorted((row.name, row.visits) for row in rows) == [("bob", 5), ("cid", 5), ("dan", 5)]
    declare(users, "visits bigint", "users")
    users.append("users", ['{"visits": 6}', "nonsense", None], key=["ada", "bob", "cid"])
    own = {"subscribe": "users", "view": "latest", "typed": "true", "metadata": "true"}
    rows = read(**own, mode="PERMISSIVE").collect()
    assert sorted((row["_key"].decode(), row.visits, row["_corrupt_record"]) for row in rows) == [
        ("ada", 6, None),
        ("bob", None, "nonsense"),
        ("dan", 5, None),
    ]


@only_long("a job of Spark")
def test_older_values_come_from_the_table_and_sql_has_the_view(spark, users, read):
    tiering.run(spark, **users.place, **users.table).collect()
    users.cut("users", users.ends("users")[0])  # of partition 0
    users.append("users", ["3", None], key=["ada", "bob"])
    assert values(read(subscribe="users", view="latest", includeTiered=True)) == {"ada": "3", "cid": "2"}
    place = users.location.path or users.location.bootstrap
    more = {"tieredTable": users.table["table"]} if users.table else {}
    datasource.register(spark, place, "users", view="latest", includeTiered=True, **more)
    found = spark.sql("SELECT string(key) AS key, string(value) AS value FROM users").collect()
    assert {row.key: row.value for row in found} == {"ada": "3", "cid": "2"}
    spark.catalog.dropTempView("users")
