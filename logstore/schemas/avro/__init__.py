"""Avro: data of a writer's schema as columns of a reader's, in bulk.

From the ground up: `schema`, the types of a text; `types`, how they look as Arrow's; `defaults`, a default as data;
`resolution`, how a writer's data becomes a reader's, as a plan; `layout`, which buffers columns have; `assembly`,
programs for kernels; `reading`, a plan as such a program; `decoding`, which runs it; `writing` and `encoding`, the way
back; `wire`, the ids before the data; `format`, the formats `avro` and `avro-confluent`.
"""
