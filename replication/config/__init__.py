"""The settings of a broker, as Kafka names them in server.properties.

`properties` reads a file of them; `broker` has each of them, with its unit and text (`docs/generate.py` makes the pages
of them), `rights` those of them about who may do what; `live` those that change while a broker runs; `group` those that
a group may have of its own; `unsupported` those of Kafka's that there are none of here, and why.
"""
