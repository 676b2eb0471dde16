"""Security: the rights that requests need, and the authorizer that grants them.

`access`: Kafka's operations and resources, a `Need` of a request, and the `Authorizer` that every request passes in
`network.pipeline`. Nothing here reads a disk, a socket or a clock.
"""
