"""docs/architecture.md names folders, files and classes as they are."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "ottla"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
# Named in a walk though it is in another file than the one it stands at.
ELSEWHERE = {"ReplicaManager.read_from_log", "sendfile"}
MOST_FILES = {"A produce": 6, "A fetch": 8, "A group heartbeat": 6, "A metadata change": 8}


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def folders_of_the_page() -> set[str]:
    """The indented tree: a line may name several folders of one parent."""
    found: set[str] = set()
    parents: dict[int, str] = {}
    for line in section("The house").split("```")[1].splitlines()[2:]:
        depth = len(line) - len(line.lstrip())
        names = re.match(r"((?:[a-z_]+/ ?)+)", line.strip())
        assert names, line
        above = [parents[d] for d in sorted(parents) if d < depth]
        for name in names[1].split():
            parents = {d: path for d, path in parents.items() if d < depth}
            parents[depth] = (above[-1] if above else "") + name
            found.add(parents[depth])
    return found


def test_the_tree_has_every_folder() -> None:
    # The examples are a link.
    walked = [
        Path(folder) for folder, _, files in os.walk(PACKAGE, followlinks=True) if "__init__.py" in files
    ]
    packages = {f"{folder.relative_to(PACKAGE)}/" for folder in walked} - {"./"}
    assert folders_of_the_page() == packages


def walks() -> dict[str, list[str]]:
    parts = re.split(r"^\*\*([^*]+)\*\*", section("Four walks"), flags=re.M)[1:]
    return {
        title: re.findall(r"^\d\. `([^`]+)`", text, flags=re.M)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize("title", MOST_FILES)
def test_a_walk_is_short_and_its_files_are_there(title: str) -> None:
    files = walks()[title]
    assert 0 < len(files) <= MOST_FILES[title]
    assert [name for name in files if not (PACKAGE / name).is_file()] == []


def test_what_a_walk_names_is_in_its_file() -> None:
    for item in re.findall(
        r"^\d\. (`[^`]+`:.*?)(?=^\d\. |^\*\*|\Z)", section("Four walks"), flags=re.M | re.S
    ):
        file, *names = re.findall(r"`([^`]+)`", item)
        text = (PACKAGE / file).read_text()
        for name in names:
            if re.fullmatch(r"[A-Z]\w+(\.\w+)?|[a-z_]+", name) and name not in ELSEWHERE:
                assert re.search(rf"\b(def|class) {name.split('.')[-1]}\b", text), (file, name)


@pytest.mark.parametrize(
    "row",
    [
        line
        for line in section("Kafka's classes, and where they are here").splitlines()
        if "`" in line and line[0] == "|"
    ],
)
def test_kafkas_classes_are_found_by_their_names(row: str) -> None:
    kafka, here, file = (cell.strip() for cell in row.strip("|").split("|"))
    text = (PACKAGE / file.strip("`")).read_text()
    for name in re.findall(r"\b[A-Z]\w+", kafka.split(" (")[0]):
        assert re.search(rf"\b{name}\b", text), f"{name} is not to be found in {file}"
    for name in re.findall(r"`(\w+)`", here):
        whole = (PACKAGE / file.strip("`")).parent
        assert any(
            re.search(rf"^(class|def|async def) {name}\b", f.read_text(), re.M) for f in whole.glob("*.py")
        ), name


def test_unit_tests_lie_where_what_they_test_lies() -> None:
    tests = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path("docs")}
    assert [str(folder) for folder in sorted(folders) if not (PACKAGE / folder).is_dir()] == []
