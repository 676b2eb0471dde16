"""The Kafka protocol: bytes to requests, responses to bytes. No I/O here, and nothing that decides.

From the ground up: `wire`, the primitive values; `messages`, Produce and Fetch as values; `decoding` and `encoding`
of those by hand, since they carry the records; `interbroker`, what controllers and brokers say; `kio_entities`,
`kio_checks` and `kio_pieces`, all other messages through kio: made, looked through before they are decoded, done item
by item; `framing`, frames out of a stream; `apis`, the table of what is served; `bounds`, what one request may cost.
"""
