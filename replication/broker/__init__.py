"""One broker: its port, its registration, its logs, and how it starts and stops.

From the ground up: `loop_watch`, which notices a stalled event loop; `garbage`, when Python collects it; `log_lines`
and `logs`, server.log and the other text logs; `users`, those that may log in; `config_changes`, changed settings of
topics, groups and brokers, and passwords; `acl_nodes`, the nodes of ACLs in the tree, and `acl_changes`, changed ACLs;
`quota_nodes` and `quota_changes`, the same of quotas; `tls`, the contexts of a listener; `inter_broker`, the listeners,
and what brokers let each other do; `feature_level`, that of the cluster; `leaders`, questions to the leaders on other
brokers; `topic_admin`, topics created, grown and deleted; `internal_topics`, the partitions of coordinators; `markers`,
the ends of transactions, and `verification`, their beginnings, at the leaders of partitions; `share_states`, states of
shared partitions, asked of their coordinators; `share`, these partitions at their leader; `handlers`, the APIs;
`needs`, the rights that each takes; `first_news`, for which some requests wait; `coordinators`, groups, transactions
and share states with all that they need; `metric_help`, `families`, `process_metrics` and `metrics`, the page of
Prometheus; `lifecycle`, its session and registration; `broker`; `cut_off`, for network partitions in tests; `process`,
which `pylog broker start` runs.

It registers after its logs are recovered, and hands its leaderships over before it leaves.
"""
