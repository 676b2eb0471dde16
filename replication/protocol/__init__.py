"""The Kafka protocol: bytes to requests, responses to bytes. No I/O and no decisions here.

From the ground up: `wire`, the primitive values; `messages`, Produce and Fetch as values; `decoding` and `encoding` of
those by hand, since they carry the records, as does `share_encoding`; `interbroker`, the requests between controllers
and brokers, and `told_partitions`, the long ones of them by hand; `small_messages`, what clients send most often of
the rest, by hand, too; `kio_entities`, `kio_reader` and `kio_pieces`, all other messages as entities of kio's: built,
read, written item by item; `kio_newer`, the requests that kio does not know yet; `requests`, a type of each of their
requests for all versions, which `kio_requests` gives to its entities; `framing`, frames out of a stream; `features`,
what ApiVersions tells of them; `apis`, the table of served APIs; `one_partition`, most Produces, Fetches and
OffsetCommits, by hand; `failures`, an answer that says an error, made from the schema of its API; `bounds`, the cost
of one request.
"""
