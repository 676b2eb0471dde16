"""The one door: the authorizer sees a request before its handler does, and every API of a broker names its needs."""

import pytest

from replication.broker.needs import endpoints, needs_of
from replication.model.metadata import Metadata
from replication.network.admission import SocketServerSettings
from replication.network.connection import LOGINS
from replication.network.pipeline import Endpoint, TurnEndpoint
from replication.network.server import Server
from replication.network.work import Work
from replication.protocol.apis import SERVED, ApiKey
from replication.security.access import NOTHING, Operation, of_cluster, of_topic
from tests.support.peer import FETCHED, LIST_GROUPS, PRODUCED, Peer, fetch, groups, produce, run, serving

NEED = of_cluster(Operation.DESCRIBE)


class Recording:
    """An authorizer that remembers what it was asked, and refuses `without`; `ahead`: needs without their request."""

    has_rights = True

    def __init__(self, *without):
        self.asked, self.ahead, self.without = [], [], frozenset(without)

    def refused(self, context, needs, request):
        wanted = needs(request)
        if isinstance(request, Work):
            self.asked.append((request, tuple(wanted), context))
        else:
            self.ahead.append(tuple(wanted))
        return self.without.intersection(wanted) or NOTHING


async def served(authorizer, key, seen, peer_of):
    """Answer one request of an API whose requests go one by one, or together with others of their turn."""

    def note(work):
        assert [request for request, *_ in authorizer.asked].count(work) == 1, "no authorizer saw it"
        seen.append(work)

    def handle(work, body):
        note(work)
        return groups(work, body) if key is ApiKey.LIST_GROUPS else FETCHED

    def together(works):
        for work in works:
            note(work)
            work.answer(PRODUCED)

    turns = {key: together} if key is ApiKey.PRODUCE else {}
    handlers = {} if turns else {key: handle}
    needs = {key: lambda work: (NEED,)}
    async with serving(handlers, turns=turns, authorizer=authorizer, needs=needs) as (_, port):
        return await peer_of(await Peer.connect(port))


REQUESTS = {ApiKey.LIST_GROUPS: lambda: LIST_GROUPS, ApiKey.FETCH: fetch, ApiKey.PRODUCE: produce}


@pytest.mark.parametrize("key", REQUESTS)
def test_each_request_is_seen_once_by_the_authorizer_and_then_by_its_handler(key):
    authorizer, seen = Recording(), []

    async def ask(peer):
        for _ in range(3):
            peer.send(*REQUESTS[key]())
        return [await peer.answered() for _ in range(3)]

    assert run(served(authorizer, key, seen, ask)) == [1, 2, 3]
    assert [work.correlation_id for work in seen] == [1, 2, 3]
    assert [needs for _, needs, _ in authorizer.asked] == [(NEED,)] * 3
    assert {context.host for *_, context in authorizer.asked} == {"127.0.0.1"}


def test_a_refused_request_is_answered_and_reaches_no_handler():
    authorizer, seen = Recording(NEED), []

    async def ask(peer):
        peer.send(*LIST_GROUPS)
        peer.send(*LIST_GROUPS)
        return [await peer.answered() for _ in range(2)]

    assert run(served(authorizer, ApiKey.LIST_GROUPS, seen, ask)) == [1, 2]
    assert not seen


def test_a_long_request_passes_the_authorizer_too():
    authorizer, seen = Recording(), []

    async def ask(peer):
        key, version, body = fetch()
        topic = body.topics[0]
        many = body._replace(topics=tuple(topic._replace(name=f"t{n}") for n in range(2_000)))
        peer.send(key, version, many)
        return await peer.answered()

    assert run(served(authorizer, ApiKey.FETCH, seen, ask)) == 1
    assert [work.is_long for work in seen] == [True]
    assert [needs for _, needs, _ in authorizer.asked] == [tuple(need for few in authorizer.ahead for need in few)]


def test_requests_of_the_broker_itself_pass_the_authorizer():
    authorizer = Recording()

    async def main():
        served = {ApiKey.LIST_GROUPS: Endpoint(lambda work: (NEED,), groups)}
        server = Server(served, SocketServerSettings(), authorizer=authorizer)
        try:
            return await server.pipeline.call(ApiKey.LIST_GROUPS, None)
        finally:
            await server.close(grace_s=0)

    assert run(main()) == groups(None, None)
    assert [(needs, context.principal.name) for _, needs, context in authorizer.asked] == [((NEED,), "BROKER")]


def test_an_endpoint_cannot_be_made_without_its_needs():
    with pytest.raises(TypeError):
        Endpoint(handle=groups)
    with pytest.raises(TypeError):
        TurnEndpoint(handle_all=groups)


def test_every_api_that_a_broker_serves_names_its_needs():
    known = needs_of(Metadata())
    assert set(known) >= set(SERVED) - LOGINS  # the pipeline answers these
    with pytest.raises(KeyError):
        endpoints({ApiKey.DESCRIBE_QUORUM: groups}, {}, Metadata())


def test_needs_of_a_topic_are_named_once():
    work = type("Asked", (), {"version": 7, "body": produce()[2]})()
    assert list(needs_of(Metadata())[ApiKey.PRODUCE](work)) == [of_topic(Operation.WRITE, "t")]
