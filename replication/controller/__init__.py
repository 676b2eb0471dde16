"""The controller: which broker leads which partition, and who is told.

`machine` decides; `watches` tell it what changes in the tree; `channels` tell brokers, each in order, until they
obey; `driver` runs for controller, and performs what the machine decides: writes to the tree first, and tells brokers
only what is written there.
"""
