"""What nodes say to one another: the quorum, the life of a broker, replication, forwarding."""
