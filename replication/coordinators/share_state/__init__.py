"""Share states: how far each share group has come in each partition, kept in `__share_group_state`.

`states` is how the coordinator of a group reaches them, wherever they are.
"""
