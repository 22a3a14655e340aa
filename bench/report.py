"""Rows with both sides and their ratio, for people and as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

OUT = Path(__file__).parent / "out"


@dataclass(frozen=True)
class Row:
    """One figure of both sides. `aim` bounds Ottla's divided by Apache's (or, without Apache's, Ottla's own)."""

    what: str
    unit: str
    apache: float | None
    ottla: float
    aim: float | None = None
    higher_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ottla / self.apache if self.apache else None

    @property
    def met(self) -> bool | None:
        if self.aim is None:
            return None
        figure = self.ratio if self.apache is not None else self.ottla
        assert figure is not None
        return figure >= self.aim if self.higher_is_better else figure <= self.aim

    def cells(self) -> list[str]:
        apache = "-" if self.apache is None else _number(self.apache)
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        sign = ">=" if self.higher_is_better else "<="
        aim = "-" if self.aim is None else f"{sign} {_number(self.aim)}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        return [f"{self.what}", self.unit, apache, _number(self.ottla), ratio, aim, verdict, self.note]


HEADER = ["what", "unit", "Apache", "Ottla", "ratio", "aim", "", ""]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def save(part: str, rows: list[Row]) -> None:
    OUT.mkdir(exist_ok=True)
    (OUT / f"{part}.json").write_text(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=1))
