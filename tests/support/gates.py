"""Gates of listeners where users log in, and what their clients do and see there."""

import hashlib
import logging

from replication.network.gate import Gate
from replication.protocol.apis import ApiKey
from replication.security import scram
from tests.support.peer import LIST_GROUPS

ADA, SECRET = "ada", b"s" * 32


class Known:
    secret = SECRET

    def password(self, username):
        return b"secret" if username == ADA else None

    def credential(self, mechanism, username):
        if username != ADA:
            return scram.decoy(mechanism, SECRET, username)
        salted = hashlib.pbkdf2_hmac(scram.hash_of(mechanism), b"secret", b"salt", 4096)
        return scram.credential_of(mechanism, salted, b"salt", 4096)


def sasl_gate(**options):
    mechanisms = ("PLAIN", "SCRAM-SHA-256")
    return Gate("SASL", True, mechanisms, Known(), failure_delay_ms=1, **options)


def whose(context, body):
    """A handler that answers with the client's name."""
    name = context.origin.context.principal.name
    return {"error_code": 0, "groups": [{"group_id": name, "protocol_type": "", "group_state": "", "group_type": ""}]}


WHOSE = {ApiKey.LIST_GROUPS: whose}


async def name_of(peer):
    return (await peer.ask(*LIST_GROUPS)).groups[0].group_id


async def log_in(peer, token=f"\0{ADA}\0secret", mechanism="PLAIN"):
    answer = await peer.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    assert answer.error_code == 0
    return await peer.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token.encode()})


def one_line(caplog, part):
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1, caplog.text
    assert part in lines[0].getMessage()
    assert "secret" not in caplog.text
