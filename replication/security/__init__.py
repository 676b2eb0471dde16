"""Security: the rights that requests need, the authorizer that grants them, and how clients and brokers prove a name.

`access`: Kafka's operations and resources, a `Need` of a request, and the `Authorizer` that every request passes in
`network.pipeline`. `hosts`: addresses and networks; `acl`: an ACL and a filter of ACLs; `acl_rules`: what all ACLs say
about a request; `acl_authorizer`: the authorizer that goes by them. `quotas`: what clients may take, and which quota
counts for whom; `rates`: what was taken, and how long to wait. `scram`: a password proved, on both sides, and no
more; `proof`: brokers of one cluster among themselves; `tokens`: signed ones; `sasl`: the machine of a login on the
server, over these; `principals`: names out of certificates. Nothing here reads a disk, a socket or a clock.
"""
