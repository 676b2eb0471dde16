"""The pure machine of one transactional id: `step.step(transaction, event, now_ms, limits) -> (transaction, effects)`.

From the ground up: `state`, its values; `events`, its events and effects; `records`, Kafka's binary keys and values of
`__transaction_state`; `step`.
"""
