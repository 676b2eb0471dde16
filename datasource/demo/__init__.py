"""To begin with: `pylog demo`, the main job of pylog on real input, and `pylog pipelines init`, a declarative pipeline.

`run` takes a year of flights through a topic, as a stream and as a table, and returns values; `cli` prints them.
`project` writes the files of `pipeline`; `pipelines` is its command. The sink itself refuses a flow that was reset,
because its topic cannot be emptied (`datasource.connector.checkpoints`).
"""
