"""Who somebody is and what they may do: SASL, SCRAM, delegation tokens, ACLs."""
