"""A running broker serves all that its table says, and has a handler for each."""

import socket
import struct

import pytest

from replication.protocol import apis
from replication.protocol.apis import ApiKey


@pytest.mark.parametrize("version", [0, 3, 4])
def test_a_broker_advertises_the_whole_table(cluster, version):
    """Also to those who ask in a version that it does not know yet: aiokafka asks in 0, kafka-python in the newest."""
    software = {"client_software_name": "test", "client_software_version": "1"} if version >= 3 else {}
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as peer:
        for part in apis.encode_request(ApiKey.API_VERSIONS, version, 1, "me", software):
            peer.sendall(part)
        stream = peer.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        _, answer = apis.decode_response(ApiKey.API_VERSIONS, version, memoryview(stream.read(size)))
    told = tuple((row.api_key, row.min_version, row.max_version) for row in answer.api_keys)
    assert told == apis.advertised(apis.SERVED)
