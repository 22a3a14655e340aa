"""Users, rules, quotas, tokens, certificates and keys, and nodes that have them."""
