"""One broker: its port, its place in the tree, its logs, and how it starts and stops.

From the ground up: `loop_watch`, which sees when the event loop stands still; `garbage`, when Python looks for it;
`log_lines` and `logs`, server.log and its like; `config_changes`, settings of topics that change in the tree;
`leaders`, what is asked of other brokers' leaders; `topic_admin`, topics made, grown and deleted; `handlers`, what is
answered; `metrics`; `broker`; `process`, which is what `pylog broker start` runs.

It registers in the tree after its logs are recovered, and hands its leaderships over before it leaves.
"""
