"""A part of several sections, of which each has servers of its own and can be run alone (`--only SECTION`)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from bench.report import Report

Section = Callable[[Report, Path, bool], None]


def run_sections(
    part: str,
    sections: Mapping[str, Section],
    report: Report,
    where: Path,
    quick: bool = False,
    only: Collection[str] = (),
) -> None:
    """Every section, or those that are named; each is worth its figures even if another has failed."""
    failed: list[str] = []
    for name in only or sections:
        try:
            sections[name](report, where / name, quick)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed.append(name)
            print(f"{part}, {name}: {error}", file=sys.stderr)
        shutil.rmtree(where / name, ignore_errors=True)
    assert not failed, f"sections {' '.join(failed)}"
