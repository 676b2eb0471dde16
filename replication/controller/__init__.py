"""The controller: it elects leaders, and tells every broker what it leads and follows.

`machine` decides; `watches` reports changes of the tree to it; `channels` sends requests to each broker in order,
until it has obeyed; `tree_writer` writes to the tree; `driver` runs for controller and performs the effects of the
machine: it writes to the tree first, and tells brokers only what is written there.
"""
