"""A client of a server in the same event loop, and a server whose answers a test holds in its hands."""

import asyncio
import contextlib
import struct
from collections import deque
from typing import ClassVar

from replication.network.admission import Admission, SocketServerSettings
from replication.network.pipeline import Endpoint, TurnEndpoint, no_needs
from replication.network.server import Server
from replication.network.work import Work
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey
from replication.protocol.messages import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from replication.security.access import ALLOW_ALL, Context

PATIENCE_S = 20
new_event_loop = asyncio.new_event_loop  # the fixture chooses


def run(main):
    """Run a test's coroutine; nothing in a test may take longer than PATIENCE_S."""

    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            return await main

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(bounded())


class Peer:
    """One connection, and how often its requests were sent."""

    connected: ClassVar = []

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.sent = 0
        self.connected.append(self)

    @classmethod
    async def connect(cls, port, **options):
        return cls(*await asyncio.open_connection("127.0.0.1", port, **options))

    def send(self, key, version, body):
        """Send a request; return its correlation id."""
        self.sent += 1
        self.writer.writelines(map(bytes, apis.encode_request(key, version, self.sent, "test", body)))
        return self.sent

    async def frame(self):
        """The next response as bytes, its size left out; None at the end of the connection."""
        try:
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def answered(self):
        """The correlation id of the next response; None at the end of the connection."""
        frame = await self.frame()
        return None if frame is None else struct.unpack(">i", frame[:4])[0]

    async def ask(self, key, version, body):
        """Send a request and read its answer."""
        self.send(key, version, body)
        frame = await self.frame()
        return apis.decode_response(key, version, memoryview(frame))[1]

    async def is_closed(self):
        """Wait for the server to close the connection; what it still sends is dropped."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 20):
                pass
        return True

    def close(self):
        self.writer.transport.abort()


class Answers:
    """The origin of requests that no socket sent: it keeps what they are answered."""

    authorizer = ALLOW_ALL

    def __init__(self):
        self.admission = Admission(SocketServerSettings())
        self.context = Context("127.0.0.1", 1)
        self.given = []

    def work(self, frame):
        """A request as it is decoded from its frame."""
        return Work(self, bounds.decode_short(memoryview(frame)), 0, 0.0)

    def answer(self, work, response):
        self.given.append((work, response))

    def fail(self, work, error):
        raise error


class Hand:
    """A handler whose answers come when the test says so."""

    def __init__(self, *, parks=False):
        self.waiting = deque()
        self.seen = []
        self.parks = parks
        self._news = asyncio.Event()

    def __call__(self, context, body):
        if self.parks:
            context.park()
        future = asyncio.get_running_loop().create_future()
        self.seen.append(context.correlation_id)
        self.waiting.append(future)
        self._news.set()
        return future

    async def came(self, count):
        """Wait until so many requests were dispatched."""
        while len(self.seen) < count:
            self._news.clear()
            await self._news.wait()

    def answer(self, response, number=0):
        """Answer one of those that wait."""
        future = self.waiting[number]
        del self.waiting[number]
        future.set_result(response)


@contextlib.asynccontextmanager
async def serving(
    handlers, *, observer=None, turns=None, authorizer=ALLOW_ALL, needs=None, gate=None, throttle=None, **limits
):
    """(server, port) of a running server. APIs need nothing but `needs`; anybody comes in but for `gate`."""
    served = {key: Endpoint(no_needs, handler) for key, handler in handlers.items()}
    served |= {key: TurnEndpoint(no_needs, handler) for key, handler in (turns or {}).items()}
    served |= {key: served[key]._replace(needs=each) for key, each in (needs or {}).items() if key in served}
    settings = SocketServerSettings(**limits)
    server = Server(served, settings, observer=observer, authorizer=authorizer, throttle=throttle)
    port = await server.start("127.0.0.1", 0, gate)
    try:
        yield server, port
    finally:
        await hang_up()
        await server.close(grace_s=0)


async def hang_up():
    """Close every connection that this test has made."""
    while Peer.connected:
        Peer.connected.pop().close()
    await settled()


async def settled():
    """Let everything that is ready in the loop, and what the sockets hold, happen."""
    for _ in range(5):
        await asyncio.sleep(0.01)


async def until(condition):
    while not condition():  # noqa: ASYNC110  what is waited for tells nobody
        await asyncio.sleep(0.01)


def groups(context, body):
    """A handler for ListGroups that answers at once."""
    return {"error_code": 0, "groups": []}


LIST_GROUPS = (ApiKey.LIST_GROUPS, 0, {})
PRODUCED, FETCHED = ProduceResponse(()), FetchResponse(())


def produce(size=100):
    records = bytes(size)
    request = ProduceRequest(1, 1000, (ProduceTopic("t", (ProducePartition(0, records),)),))
    return ApiKey.PRODUCE, 7, request


def fetch():
    return ApiKey.FETCH, 11, FetchRequest(1000, 1, (FetchTopic("t", None, ()),))
