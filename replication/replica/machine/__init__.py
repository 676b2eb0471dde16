"""The decisions of replicas, pure: no log, no socket, no clock.

`isr`: a leader's view of a partition: who is in sync, where the high watermark is. `follower`: where to truncate,
what to fetch, when to wait. `leadership`: which of a controller's requests counts, and which role it gives. `repair`:
what becomes of a replica that is damaged. `looks`: what becomes of a batch whose schema ids are not known yet.
"""
