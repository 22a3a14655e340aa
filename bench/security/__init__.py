"""Part `security`: what TLS, logins, rules and quotas cost, one node of each kind with the same settings.

Nodes know who asks (SASL) and judge by StandardAuthorizer; certificates have keys of P-256, and TLS is 1.3. Both kinds
run at once and rounds alternate. Each section has nodes of its own and is run alone with
`python -m bench security --only SECTION`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from bench.report import Report
from bench.security import limits, logins, rules, tls

SECTIONS: dict[str, Callable[[Report, Path, bool], None]] = {
    "tls": tls.tls,
    "logins": logins.logins,
    "rules": rules.rules,
    "rule-changes": rules.changes,
    "quotas": limits.quotas,
}


def security(report: Report, where: Path, quick: bool = False, only: Collection[str] = ()) -> None:
    """Every section, or those that are named; each is worth its figures even if another has failed."""
    failed: list[str] = []
    for name in only or SECTIONS:
        try:
            SECTIONS[name](report, where / name, quick)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed.append(name)
            print(f"security, {name}: {error}", file=sys.stderr)
        shutil.rmtree(where / name, ignore_errors=True)
    assert not failed, f"sections {' '.join(failed)}"
