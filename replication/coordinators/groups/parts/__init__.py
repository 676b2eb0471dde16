"""Groups that are stored in parts, a record each, and whose partitions the coordinator assigns: `consumer` and `share`.

From the ground up: `state`, the fields that they have in common and their records; `events`, their writes and the
answer to a heartbeat; `draft` is such a group while one event is processed.
"""
