"""A Kafka client that moves batches as bytes: for programs, tools and the Spark source.

From the ground up: `addresses`, where a cluster is; `security`, settings of TLS and SASL; `metadata`, who leads which
partition; `attempts`, of one call; `coordinators`, those of groups and transactional ids; `nearest`, which replica to
read; `cluster`, requests to the right broker, repeated while that may help; `leader_requests`, to the leaders of many
partitions; `assignors`, who of a group reads what; `settings` of topics, brokers, producers and consumers; `topics`,
made and deleted; `groups`, committed offsets; `group_admin`, `acls`, `users`, `quotas` and `admin`, for operators;
`transactions`, begun and ended; `fetching`, the batches of a range of offsets; `replicas`, those of any replica;
`local_replicas`, a leader's files on this machine; `partition_queue`, batches of one partition on their way;
`producing`, batches in order and once each; `producer`, tables to topics, also in a transaction; `membership`, a member
as a machine, `member_requests`; `consumer_membership` and `heartbeats`, both of one that is assigned partitions;
`members`, kept alive; `reading`, partitions fetched ahead; `consumer`, a member that reads; `client_loop`, `blocking`,
`typed`, rows of columns, `latest`, the last of each key, `schemas`, of `_schemas`, `registry_settings` and
`schema_registry`, those of a registry, `samples`, of a range's size, and `kafka_client`, all without an event loop.

Share groups (KIP-932) stand beside `consumer`: `share_settings`; `share_sessions` and `deliveries`, machines of the
sessions with brokers and of acknowledgements; `share_ahead`, what is acquired; `share_requests`; `share_reading`, the
requests to all leaders; `share_consumer`, a member, with and without an event loop.

Everything but those ten belongs to one event loop. Nothing decodes a record before Arrow does.
"""
