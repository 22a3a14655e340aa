"""`ottla storage`: voters, first users, and what releases bring."""

import json
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.metadata.records import UserScramCredentialRecord
from ottla.metadata.snapshot import BOOTSTRAP_SNAPSHOT_ID, read_bootstrap, read_checkpoint
from ottla.model.ids import uuid_to_str
from ottla.raft.metadata_log import DIRECTORY_NAME
from ottla.storage.dirs.meta_properties import read_meta_properties

Capture = pytest.CaptureFixture[str]
MINE, OTHER = "JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A"


def _format(directory: Path, *words: str) -> int:
    return main(["storage", "format", "-d", str(directory), "-t", "c", *words])


def test_the_voters_name_the_directory(tmp_path: Path) -> None:
    voters = f"2@[::1]:9095:{OTHER},1@localhost:9094:{MINE}"
    assert _format(tmp_path, "--initial-controllers", voters) == 0
    meta = read_meta_properties(tmp_path)
    assert meta is not None
    assert meta.directory_id is not None
    assert uuid_to_str(meta.directory_id) == MINE
    snapshot = read_checkpoint(tmp_path / DIRECTORY_NAME / BOOTSTRAP_SNAPSHOT_ID.file_name)
    assert snapshot.voters is not None
    assert [voter.voter_id for voter in snapshot.voters.voters] == [1, 2]
    assert snapshot.voters.voters[1].endpoints[0].host == "0:0:0:0:0:0:0:1"


def test_a_controller_that_joins_names_nobody(tmp_path: Path) -> None:
    assert _format(tmp_path, "--no-initial-controllers") == 0
    assert not (tmp_path / DIRECTORY_NAME).exists()


OTHERS = "controller.quorum.bootstrap.servers=127.0.0.1:9093,127.0.0.1:9094"


@pytest.mark.parametrize("words", [("--standalone",), ("-N",), ("-I", f"1@localhost:9094:{MINE}")])
def test_one_of_several_controllers_is_told_which_it_is(
    tmp_path: Path, capsys: Capture, words: tuple[str, ...]
) -> None:
    settings = ("-X", OTHERS, "-X", "node.id=1")
    assert _format(tmp_path, *settings) == 2
    assert "names other controllers: choose --standalone" in capsys.readouterr().err
    assert _format(tmp_path, *settings, *words) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("-I", f"1@localhost:9094:{MINE},2@localhost:9095:{OTHER}"),
        ("-N",),
        ("-X", "controller.quorum.voters=1@localhost:9093,2@localhost:9094"),
        ("-X", "process.roles=broker", "-X", "controller.listener.names=CONTROLLER", "-X", OTHERS),
    ],
)
def test_who_joins_others_has_to_know_their_cluster(
    tmp_path: Path, capsys: Capture, words: tuple[str, ...]
) -> None:
    assert main(["storage", "format", "-d", str(tmp_path), "-X", "node.id=1", *words]) == 2
    assert "--cluster-id: a node that joins a cluster" in capsys.readouterr().err
    assert read_meta_properties(tmp_path) is None


def test_users_are_there_from_the_start(tmp_path: Path) -> None:
    assert _format(tmp_path, "--add-scram", "SCRAM-SHA-256=[name=alice,password=secret]") == 0
    users = [r for r in read_bootstrap(tmp_path) if isinstance(r, UserScramCredentialRecord)]
    assert [user.name for user in users] == ["alice"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-s", "-N"], "choose one of"),
        (["-I", "1@localhost:9094"], "is not a voter"),
        (["-I", f"1@a:1:{MINE},1@b:2:{OTHER}"], "more than once"),
        (["-I", ","], "No voters"),
        (["-s", "-X", "controller.quorum.voters=1@localhost:9093"], "names the voters already"),
        (["-f", "kraft.version=0"], "kraft.version cannot be 0"),
        (["-r", "4.0", "-f", "metadata.version=25"], "not both"),
        (["-f", "metadata.version=99"], "Unknown metadata.version 99"),
        (["-S", "SCRAM-SHA-256=[name=a]"], "'password'"),
        (["-r", "3.4", "-S", "SCRAM-SHA-256=[name=a,password=b]"], "SCRAM is only supported"),
    ],
)
def test_what_does_not_go_together(words: list[str], message: str, tmp_path: Path, capsys: Capture) -> None:
    assert _format(tmp_path / "d", *words) in (1, 2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert read_meta_properties(tmp_path / "d") is None


def test_a_directory_of_another_node(tmp_path: Path, capsys: Capture) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    _format(one, "-X", "node.id=3")
    capsys.readouterr()
    assert main(["storage", "format", "-X", f"log.dirs={two},{one}", "-X", "node.id=4", "-g"]) != 0
    assert "node" in capsys.readouterr().err
    assert read_meta_properties(two) is None


def test_features_as_json(capsys: Capture) -> None:
    assert main(["storage", "version-mapping", "-r", "3.9", "-o", "json"]) == 0
    levels = json.loads(capsys.readouterr().out)
    assert (levels["metadata.version"], levels["kraft.version"], levels["group.version"]) == (21, 1, 0)
    needs = ["-f", "eligible.leader.replicas.version=1", "-o", "json"]
    assert main(["storage", "feature-dependencies", *needs]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["requires"] == {"metadata.version": 23}


@pytest.mark.parametrize("feature", ["nothing", "group.version=x", "group.version=9", "no.such=1"])
def test_a_feature_that_does_not_exist(feature: str, capsys: Capture) -> None:
    assert main(["storage", "feature-dependencies", "-f", feature]) == 1
    assert capsys.readouterr().err.startswith("ottla: ")
