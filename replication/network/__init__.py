"""Connections: requests in, responses out, and the other end of both. The handlers of `broker` decide the answers.

From the ground up: `loops`, the event loop of brokers and clients; `steps`, long work of which each turn of the event
loop does one; `long_requests`, those that are too long for one turn of the loop; `mute`, for which a client is held
back; `arrivals`, connections by their addresses; `admission`, what all connections share of it; `work`, one request
from its first byte to its answer's, and the context of its handler; `exchange`, the order of the requests and responses
of one connection, without its socket; `throttle`, what clients have taken, and `counted`, the requests of those that
have quotas; `refusals`, the answers to requests that the authorizer refuses, whole or in rows; `pipeline`, the one
door: every request is authorized and handled there; `outbox`, the responses of one connection on their way to its
socket; `jwks`, the keys of tokens; `gate`, how a listener meets those who connect, and the logins of a connection;
`connection`, the transport of one client; `doorman`, which is there until a TLS handshake is over; `server`, which
listens.

For those who ask a broker, clients and other brokers alike: `security`, whether with TLS and SASL; `jaas`, the lines of
settings that logins have; `channel`, one connection to it; `authentication`, its begin; `client`, the broker's
versions, and a channel that is opened again; `passwords`, new ones of SCRAM.

Responses leave in the order of their requests, and requests of one connection begin in the order in which they came.
"""
