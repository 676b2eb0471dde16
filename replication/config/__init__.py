"""The settings of a broker, as Kafka names them in server.properties.

`broker` has each of them, with its unit and text (`docs/generate.py` makes the pages of them); `live` those that change
while a broker runs; `unsupported` those of Kafka's that there are none of here, and why.
"""
