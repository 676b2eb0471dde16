"""The role of a replica that follows, for one leader epoch.

`follower` drives `machine.follower` and changes the log. `fetcher` sends the requests of many followers to one leader,
in the fetch sessions of `session`.
"""
