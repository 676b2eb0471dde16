"""Connections: requests in, responses out. The handlers of `broker` decide the answers.

From the ground up: `loops`, the event loop of brokers and clients; `steps`, long work of which each turn of the event
loop does one; `long_requests`, those that are too long for one turn of the loop; `admission`, what all connections
share of it; `work`, one request from its first byte to its answer's, and the context of its handler; `exchange`, the
order of the requests and responses of one connection, without its socket; `refusals`, the answers to requests that the
authorizer refuses, whole or in rows; `pipeline`, the one door: every request is authorized and handled there;
`connection`, the transport of one client; `server`, which listens; `client`, what a broker asks of another one.

Responses leave in the order of their requests, and requests of one connection begin in the order in which they came.
"""
