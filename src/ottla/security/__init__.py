"""Who somebody is and what they may do: TLS, SASL, principals, rules, quotas; for servers and clients, without I/O."""
