"""Part `security`: what TLS, logins, rules and quotas cost, one node of each kind with the same settings.

Nodes know who asks (SASL) and judge by StandardAuthorizer; certificates have keys of P-256, and TLS is 1.3. Both kinds
run at once and rounds alternate. Each section has nodes of its own and is run alone with
`python -m bench security --only SECTION`.
"""

from __future__ import annotations

from functools import partial

from bench.sections import Section, run_sections
from bench.security import limits, logins, rules, tls

SECTIONS: dict[str, Section] = {
    "tls": tls.tls,
    "logins": logins.logins,
    "rules": rules.rules,
    "rule-changes": rules.changes,
    "quotas": limits.quotas,
}

security = partial(run_sections, "security", SECTIONS)
