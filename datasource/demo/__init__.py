"""`pylog demo`: the main job of pylog on real input.

`run` takes a year of flights through a topic, as a stream and as a table, and returns values; `cli` prints them.
"""
