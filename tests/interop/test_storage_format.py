"""kafka-storage and `ottla storage` with the same arguments: the same files, the same lines, the same refusals.

Directories are compared by what Apache's tools read in them: meta.properties as properties, bootstrap.checkpoint
and the snapshot that names the voters through kafka-dump-log, batch by batch, with only clocks (and the CRCs over
them) and random ids left out.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka, read_properties, run_tool, write_properties
from tests.interop.ottla_node import OTTLA, OttlaNode

pytestmark = pytest.mark.interop

CLUSTER = "Q2x1c3RlcklkRm9yVGVzdA"
MINE, OTHER = "JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A"
SNAPSHOT = Path("__cluster_metadata-0") / "00000000000000000000-0000000000.checkpoint"
SALT = "c2FsdCB0aGF0IGlzIGdpdmVu"
SCRAM = (
    *("--add-scram", f'SCRAM-SHA-256=[name=alice,iterations=8192,salt="{SALT}",password=alice-secret]'),
    *("--add-scram", f"SCRAM-SHA-512=[name=alice,salt={SALT},password=grüße, nicht]".replace(", ", "")),
    *("-S", f'SCRAM-SHA-512=[name=bob,salt="{SALT}",saltedpassword="YCE="]'),
)
STATIC, DYNAMIC, BROKER = "static", "dynamic", "broker"
GOOD: dict[str, tuple[str, tuple[str, ...]]] = {
    "static voters": (STATIC, ()),
    "standalone": (DYNAMIC, ("--standalone",)),
    "no initial controllers": (DYNAMIC, ("--no-initial-controllers",)),
    "initial controllers": (
        DYNAMIC,
        ("--initial-controllers", f"2@[::1]:9095:{OTHER},1@localhost:9094:{MINE}"),
    ),
    "a broker": (BROKER, ()),
    "a broker that is told the voters": (BROKER, ("-I", f"7@127.0.0.1:9094:{OTHER}")),
    "an older release": (STATIC, ("--release-version", "3.9")),
    "the oldest release": (STATIC, ("-r", "3.3-IV3")),
    "features": (STATIC, ("-f", "group.version=0", "--feature", "transaction.version=1")),
    "a metadata version": (STATIC, ("-f", "metadata.version=25")),
    "a feature with a dependency": (STATIC, ("-r", "4.0", "-f", "eligible.leader.replicas.version=1")),
    "kraft.version said aloud": (DYNAMIC, ("-s", "-f", "kraft.version=1")),
    "users": (DYNAMIC, ("--standalone", *SCRAM)),
}
BAD: dict[str, tuple[str, tuple[str, ...]]] = {
    "standalone with static voters": (STATIC, ("--standalone",)),
    "voters with static voters": (STATIC, ("-I", f"1@localhost:9094:{MINE}")),
    "standalone on a broker": (BROKER, ("--standalone",)),
    "two ways at once": (DYNAMIC, ("--standalone", "--no-initial-controllers")),
    "a voter twice": (DYNAMIC, ("-I", f"1@localhost:9094:{MINE},1@localhost:9095:{OTHER}")),
    "a voter without a directory": (DYNAMIC, ("-I", "1@localhost:9094")),
    "no voters": (DYNAMIC, ("-I", ",")),
    "a release nobody knows": (STATIC, ("-r", "9.9")),
    "release and metadata version": (STATIC, ("-r", "4.0", "-f", "metadata.version=25")),
    "an unknown feature": (STATIC, ("-f", "no.such.feature=1")),
    "an unknown level": (STATIC, ("-f", "group.version=9")),
    "an unmet dependency": (STATIC, ("-r", "3.9", "-f", "eligible.leader.replicas.version=1")),
    "kraft.version 1 with static voters": (STATIC, ("-f", "kraft.version=1")),
    "kraft.version 0 without": (DYNAMIC, ("-s", "-f", "kraft.version=0")),
    "users before there were any": (STATIC, ("-r", "3.4", *SCRAM)),
    "an unknown mechanism": (STATIC, ("-S", "SCRAM-MD5=[name=a,password=b]")),
    "no brackets": (STATIC, ("-S", "SCRAM-SHA-256=name=a")),
    "no name": (STATIC, ("-S", "SCRAM-SHA-256=[password=b]")),
    "no password": (STATIC, ("-S", "SCRAM-SHA-256=[name=a]")),
    "a salted password without salt": (STATIC, ("-S", "SCRAM-SHA-256=[name=a,saltedpassword=YCE=]")),
    "too few iterations": (STATIC, ("-S", "SCRAM-SHA-256=[name=a,password=b,iterations=1000]")),
    "too many iterations": (STATIC, ("-S", "SCRAM-SHA-256=[name=a,password=b,iterations=20000]")),
    "a setting nobody knows": (STATIC, ("-S", "SCRAM-SHA-256=[name=a,password=b,color=red]")),
}


def configuration(path: Path, quorum: str, *dirs: Path) -> Path:
    """A server.properties for two directories."""
    roles = "broker" if quorum == BROKER else "broker,controller"
    listeners = "PLAINTEXT://127.0.0.1:9092" + ("" if quorum == BROKER else ",CONTROLLER://127.0.0.1:9094")
    voters = {STATIC: {"controller.quorum.voters": "1@127.0.0.1:9094"}}
    write_properties(
        path,
        {
            "node.id": 1,
            "process.roles": roles,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": ",".join(map(str, dirs)),
            **voters.get(quorum, {"controller.quorum.bootstrap.servers": "127.0.0.1:9094"}),
        },
    )
    return path


def ottla(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(OTTLA), "storage", *words], capture_output=True, text=True, timeout=60)


def format_both(where: Path, quorum: str, options: tuple[str, ...]) -> tuple[int, int]:
    """Format by each in directories of its own; the exit codes."""
    codes = []
    for kind in ("apache", "ottla"):
        dirs = [where / kind / "one", where / kind / "two"]
        config = str(configuration(where / f"{kind}.properties", quorum, *dirs))
        words = ("format", "-t", CLUSTER, "-c", config, *options)
        done = run_tool("StorageTool", *words, check=False) if kind == "apache" else ottla(*words)
        codes.append(done.returncode)
    return codes[0], codes[1]


def contents(*directories: Path) -> list[dict[str, object]]:
    """What is in formatted directories, file by file."""
    files = {d: sorted(path for path in d.rglob("*") if path.is_file()) for d in directories}
    checkpoints = dumped([path for paths in files.values() for path in paths if path.suffix == ".checkpoint"])
    return [
        {str(path.relative_to(d)): checkpoints.get(path) or read_properties(path) for path in paths}
        for d, paths in files.items()
    ]


def dumped(paths: list[Path]) -> dict[Path, list[str]]:
    """Checkpoints as kafka-dump-log prints them, less clocks."""
    names = ",".join(map(str, paths))
    text = run_tool("DumpLogSegments", "--cluster-metadata-decoder", "--files", names).stdout
    clocks = re.compile(r'(CreateTime: |crc: |"lastContainedLogTimestamp":)\d{3,}')
    _, *parts = clocks.sub(r"\1<clock>", text).split("Dumping ")
    return {Path(name): lines for name, *lines in (part.splitlines() for part in parts)}


def named(directory: dict[str, object], ids: dict[str, str]) -> dict[str, object]:
    """Random directory ids replaced by names, in the snapshot too."""
    properties = directory["meta.properties"]
    assert isinstance(properties, dict)
    if properties["directory.id"] not in (MINE, OTHER):
        ids[properties["directory.id"]] = "<directory>"

    def replaced(value: object) -> object:
        if isinstance(value, dict):
            return {key: replaced(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [replaced(inner) for inner in value]
        return next((value.replace(i, n) for i, n in ids.items() if i in str(value)), value)  # type: ignore[attr-defined]

    return {name: replaced(value) for name, value in directory.items()}


@pytest.mark.parametrize("case", GOOD)
def test_the_same_files(case: str, tmp_path: Path) -> None:
    quorum, options = GOOD[case]
    assert format_both(tmp_path, quorum, options) == (0, 0)
    names = ("one", "two")
    found = contents(*(tmp_path / kind / name for kind in ("apache", "ottla") for name in names))
    for directory, reference, subject in zip(names, found[:2], found[2:], strict=True):
        theirs, ours = named(reference, {}), named(subject, {})
        assert ours == theirs
        names_voters = directory == "one" and not {
            "-s",
            "-I",
            "--standalone",
            "--initial-controllers",
        }.isdisjoint(options)
        assert (str(SNAPSHOT) in theirs) == names_voters


@pytest.mark.parametrize("case", BAD)
def test_the_same_refusals(case: str, tmp_path: Path) -> None:
    quorum, options = BAD[case]
    theirs, ours = format_both(tmp_path, quorum, options)
    assert theirs != 0
    assert ours != 0
    assert not list((tmp_path / "ottla").rglob("meta.properties"))


FEATURES = [
    ("version-mapping",),
    *(("version-mapping", "-r", release) for release in ("3.3-IV3", "3.8", "3.9", "4.0", "4.1-IV0", "4.2")),
    *(
        ("feature-dependencies", "-f", f"{name}={level}")
        for name, level in (("kraft.version", 1), ("metadata.version", 24), ("group.version", 0))
    ),
    ("feature-dependencies", "-f", "eligible.leader.replicas.version=1", "--feature", "share.version=1"),
]


@pytest.mark.parametrize("words", FEATURES, ids=" ".join)
def test_the_same_lines_about_features(words: tuple[str, ...]) -> None:
    theirs, ours = run_tool("StorageTool", *words), ottla(*words)
    assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)


def test_directories_that_are_formatted(tmp_path: Path) -> None:
    """A second time: refused, or passed over while the empty one is formatted."""
    for kind in ("apache", "ottla"):
        dirs = [tmp_path / kind / "one", tmp_path / kind / "two"]
        config = str(configuration(tmp_path / f"{kind}.properties", DYNAMIC, *dirs))
        words = ("format", "-t", CLUSTER, "-c", config, "--standalone")
        tool = (lambda *w: run_tool("StorageTool", *w, check=False)) if kind == "apache" else ottla
        assert tool(*words).returncode == 0
        kept = (dirs[0] / "meta.properties").read_bytes()
        (dirs[1] / "meta.properties").unlink()
        assert tool(*words).returncode == 1
        assert not (dirs[1] / "meta.properties").exists()
        assert tool(*words, "--ignore-formatted").returncode == 0
        assert (dirs[0] / "meta.properties").read_bytes() == kept
        assert read_properties(dirs[1] / "meta.properties")["cluster.id"] == CLUSTER
        assert tool("format", "-t", MINE, "-c", config, "--standalone", "-g").returncode != 0


def test_each_starts_on_what_the_other_formatted(tmp_path: Path) -> None:
    for kind in ("apache", "ottla"):
        data = tmp_path / kind
        apache = ApacheKafka(data, work_dir=tmp_path / f"{kind}-work")
        write_properties(apache.config_path, apache.settings())
        words = ("format", "-t", CLUSTER, "-c", str(apache.config_path), "--standalone", *SCRAM)
        if kind == "apache":
            run_tool("StorageTool", *words)
            with OttlaNode(data, {"node.id": 1}) as node:
                assert "node.id=1" in node.tool("ConfigCommand", *NODE).stdout
        else:
            assert ottla(*words).returncode == 0
            with apache:
                users = apache.tool("ConfigCommand", "--describe", "--entity-type", "users").stdout
                assert "alice" in users
                assert "SCRAM-SHA-256=iterations=8192" in users
                assert "bob" in users


NODE = ("--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
