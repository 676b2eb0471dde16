"""Nodes of quotas: their paths, their notices, and what stays in them."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.broker import quota_nodes
from replication.coordination import nodes, open_tree
from replication.coordination.tree import check_path
from replication.security.quotas import ANY, Entity, Quota

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
names = st.one_of(texts, st.sampled_from([ANY, ".", "..", "<default>", "a/b", "~", "*", "a b", "%41", "Ü∞\U0001f600"]))
entities = st.one_of(
    names.map(Entity),
    st.tuples(names, names).map(lambda both: Entity(*both)),
    names.map(lambda name: Entity(None, name)),
    st.sampled_from([Entity(ip=ANY), Entity(ip="::1"), Entity(ip="10.0.0.1")]),
)


@given(entities)
def test_a_path_is_that_of_its_entity_alone(entity):
    path = quota_nodes.path_of(entity)
    assert check_path(path) == path
    assert quota_nodes.entity_at(path) == entity
    notice = quota_nodes.encode_notice(path)
    assert quota_nodes.path_in_notice("/n", notice) == path


@given(entities, entities)
def test_no_two_entities_have_one_path(one, other):
    assert (one == other) == (quota_nodes.path_of(one) == quota_nodes.path_of(other))


@pytest.mark.parametrize(
    "path",
    [
        "/config/topics/a", "/config/brokers/1", "/config/users", "/config/users/a/b/c", "/config/clients/c/users/u",
        "/config/users/a%2", "/config/users/%FF", "/config/users/a~b", "/config/users/a/clients", "/other/users/a",
        "/config/ips/1.2.3.4/clients/c", "/config/users/",
    ],
)  # fmt: skip
def test_other_nodes_are_no_entities(path):
    assert quota_nodes.entity_at(path) is None


def test_paths_are_those_of_kafka():
    assert quota_nodes.path_of(Entity("CN=a,O=b c", "x*y")) == "/config/users/CN%3Da%2CO%3Db%20c/clients/x%2Ay"
    assert quota_nodes.path_of(Entity(ANY, ANY)) == "/config/users/<default>/clients/<default>"
    assert quota_nodes.path_of(Entity(ip="::1")) == "/config/ips/%3A%3A1"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"version": 2, "entity_path": "users/u/clients/c"}, "/config/users/u/clients/c"),
        ({"version": 1, "entity_type": "clients", "entity_name": "c"}, "/config/clients/c"),
        ({"version": 1}, None),
        ([], None),
    ],
)
def test_both_forms_of_kafkas_notices_are_read(data, path):
    assert quota_nodes.path_in_notice("/n", json.dumps(data).encode()) == path


def in_tree(directory, act):
    async def main():
        tree = await open_tree(f"sqlite:{directory}/tree.db", on_session=lambda event: None)
        try:
            for path in ("/config", nodes.CONFIG_CHANGES):
                if await tree.get(path) is None:
                    await tree.create(path)
            return await act(tree)
        finally:
            await tree.close()

    return asyncio.run(main())


def test_a_change_keeps_what_else_is_in_a_node_and_leaves_a_notice(tmp_path):
    entity, path = Entity("ada"), "/config/users/ada"

    async def act(tree):
        await tree.create("/config/users")
        await tree.create(path, b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x"},"later":7}')
        await quota_nodes.change(tree, {entity: {Quota.PRODUCED: 5.0, Quota.REQUESTS: 12.5}})
        await quota_nodes.change(tree, {entity: {Quota.PRODUCED: None, Quota.CONSUMED: 7.0}})
        await quota_nodes.change(tree, {entity: {Quota.PRODUCED: None, Quota.CONSUMED: 7.0}})  # nothing to do
        return json.loads((await tree.get(path)).data), await tree.children(nodes.CONFIG_CHANGES)

    node, notices = in_tree(tmp_path, act)
    assert node["config"] == {"SCRAM-SHA-256": "salt=x", "consumer_byte_rate": "7", "request_percentage": "12.5"}
    assert node["later"] == 7
    assert len(notices) == 2


def test_many_entities_are_changed_and_read_again(tmp_path):
    wanted = {Entity(f"user {number}", f"c{number % 7}"): {Quota.PRODUCED: float(number + 1)} for number in range(120)}
    wanted[Entity(None, ANY)] = {Quota.MUTATIONS: 0.5}
    wanted[Entity(ip=ANY)] = {Quota.CONNECTIONS: 3.0}

    async def act(tree):
        await quota_nodes.change(tree, wanted)
        return await quota_nodes.read_all(tree)

    found = in_tree(tmp_path, act)
    assert {entity: values for entity, values in found.items() if values} == wanted


def test_a_node_that_cannot_be_read_has_no_quotas_and_is_logged(tmp_path, caplog):
    async def act(tree):
        await tree.create("/config/clients")
        await tree.create("/config/clients/bad", b"{")
        await tree.create(
            "/config/clients/half", b'{"version":1,"config":{"producer_byte_rate":"-1","consumer_byte_rate":9}}'
        )
        await tree.create("/config/clients/a~b", b'{"version":1,"config":{"producer_byte_rate":"1"}}')
        return await quota_nodes.read_all(tree)

    found = in_tree(tmp_path, act)
    assert found == {Entity(None, "bad"): {}, Entity(None, "half"): {Quota.CONSUMED: 9.0}}
    assert len(caplog.records) == 2
