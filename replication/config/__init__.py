"""The settings of a broker, as Kafka names them in server.properties.

`properties` reads a file of them; `listeners` where a broker listens, `listener_settings` how it is met there; `quotas`
those about how much clients may take, and `rights` about who may do what; `broker` has each of them, with its unit and
text (`docs/generate.py` makes the pages of them); `live` those that change while a broker runs; `group` those that a
group may have of its own; `unsupported` those of Kafka's that there are none of here, and why.
"""
