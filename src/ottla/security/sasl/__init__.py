"""SASL exchanges of servers and clients, without I/O: PLAIN, SCRAM, OAUTHBEARER, GSSAPI, and JAAS texts."""
