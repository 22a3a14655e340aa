"""Who may log in, do what, and how much: decisions about access rules, credentials, tokens and quotas."""
