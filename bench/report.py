"""Rows of a table: what was measured, both figures, their ratio, the aim; printed, and kept as JSON."""

from __future__ import annotations

import json
import os
import platform
import sysconfig
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

OUT = Path(__file__).resolve().parent / "out"


@dataclass
class Row:
    """One measured quantity. `aim` is the bound of the ratio, or of Ottla's own figure if `absolute`."""

    name: str
    unit: str
    apache: float | None
    ottla: float | None
    aim: float | None = None
    higher_is_better: bool = False
    absolute: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ottla's figure over Apache's."""
        return self.ottla / self.apache if self.apache and self.ottla is not None else None

    @property
    def verdict(self) -> str:
        """Whether the aim is met."""
        figure = self.ottla if self.absolute else self.ratio
        if self.aim is None or figure is None:
            return ""
        met = figure >= self.aim if self.higher_is_better else figure <= self.aim
        return "met" if met else "MISSED"


@dataclass
class Report:
    """All rows of a run."""

    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Keep and print a row at once: a long run shows its progress."""
        self.rows.append(row)
        print(render(row), flush=True)

    def save(self) -> Path:
        """Write the run into bench/out."""
        OUT.mkdir(exist_ok=True)
        path = OUT / time.strftime("bench-%Y%m%d-%H%M%S.json")
        rows = [{**asdict(row), "ratio": row.ratio, "verdict": row.verdict} for row in self.rows]
        machine = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "python_built_with": sysconfig.get_config_var("CONFIG_ARGS"),
            "system": platform.release(),
            "load": os.getloadavg(),
        }
        path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
        return path


HEAD = f"{'':44} {'Apache':>12} {'Ottla':>12} {'ratio':>7} {'aim':>7}"


def render(row: Row) -> str:
    """One line of the table."""
    name = f"{row.name} [{row.unit}]"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    aim = "" if row.aim is None else f"{row.aim:g}"
    line = f"{name:44} {number(row.apache):>12} {number(row.ottla):>12} {ratio:>7} {aim:>7} {row.verdict}"
    return line + (f"  {row.note}" if row.note else "")


def number(value: float | None) -> str:
    """Three figures that matter."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
