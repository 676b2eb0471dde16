"""Declarative pipelines of Spark: a project that runs at once, `pylog pipelines init`.

`template` writes the project, `cli` is the command. A flow that was reset is refused by the sink
(`datasource.connector.checkpoints`), whose topic cannot be emptied.
"""
