"""The quorum-state file: Kafka's bytes, nothing guessed, replaced whole."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.raft.core import OffsetAndEpoch, Role, initial_state
from ottla.raft.quorum_state import MAX_EPOCH, ElectionState, QuorumStateError, QuorumStateFile
from ottla.raft.voters import ReplicaKey, VoterSet

# As a 4.3.1 broker left them.
STATIC = (
    '{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
    '"currentVoters":[{"voterId":1}],"data_version":0}'
)
DYNAMIC = (
    '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
)


def test_kafkas_files_are_ours_to_the_byte() -> None:
    static = ElectionState.from_json(STATIC)
    assert static == ElectionState(1, 1, None, frozenset({1}))
    assert static.to_json(0) == STATIC
    dynamic = ElectionState.from_json(DYNAMIC)
    assert dynamic == ElectionState(1, 1)
    assert dynamic.to_json(1) == DYNAMIC


def test_a_vote_is_remembered_with_its_directory(tmp_path: Path) -> None:
    file = QuorumStateFile(tmp_path)
    assert file.read() is None
    state = ElectionState(9, -1, ReplicaKey(3, bytes(range(16))))
    file.write(state, 1)
    assert file.read() == state
    file.write(ElectionState(10, 3), 1)
    assert file.read() == ElectionState(10, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["quorum-state"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        STATIC.replace('_version":0', '_version":7'),
        DYNAMIC.replace('"votedId":-1,', ""),
        DYNAMIC.replace('Epoch":1', 'Epoch":2147483648'),
        DYNAMIC.replace('Epoch":1', 'Epoch":-2147483649'),
        DYNAMIC.replace('Epoch":1', 'Epoch":true'),
        DYNAMIC.replace('leaderId":1', 'leaderId":4294967296'),
        DYNAMIC.replace('votedId":-1', 'votedId":-2'),
        STATIC.replace('voterId":1', 'voterId":2147483648'),
    ],
)
def test_what_is_no_quorum_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "quorum-state").write_text(text)
    with pytest.raises(QuorumStateError, match="quorum-state"):
        QuorumStateFile(tmp_path).read()


def test_the_line_says_which_file_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "quorum-state").write_text(DYNAMIC.replace('Epoch":1', 'Epoch":2147483648'))
    with pytest.raises(QuorumStateError) as error:
        QuorumStateFile(tmp_path).read()
    text = str(error.value)
    assert text.startswith(str(tmp_path / "quorum-state"))
    assert "leaderEpoch is 2147483648, allowed are -2147483648 to 2147483647" in text
    assert "move the file away and start again" in text
    assert "\n" not in text


def test_an_epoch_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    file = QuorumStateFile(tmp_path)
    file.write(ElectionState(MAX_EPOCH, 1), 1)
    assert file.read() == ElectionState(MAX_EPOCH, 1)
    for epoch in (MAX_EPOCH + 1, -1):
        with pytest.raises(QuorumStateError, match="cannot be written"):
            file.write(ElectionState(epoch, 1), 1)
    assert file.read() == ElectionState(MAX_EPOCH, 1)


def test_an_epoch_of_apaches_that_went_round_is_older_than_any_log(tmp_path: Path) -> None:
    """As 4.3.1 leaves the file when the counter has reached its end; it starts on it, and so does Ottla."""
    (tmp_path / "quorum-state").write_text(DYNAMIC.replace('Epoch":1', 'Epoch":-2147483648'))
    found = QuorumStateFile(tmp_path).read()
    assert found is not None
    state = initial_state(ReplicaKey(1), VoterSet.static({1: ()}), found, OffsetAndEpoch(20, 3))
    assert (state.epoch, state.role) == (3, Role.UNATTACHED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["leaderId", "leaderEpoch", "votedId", "votedDirectoryId", "data_version"]), inner
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_random_json_is_a_state_or_an_error(value: object) -> None:
    try:
        state = ElectionState.from_json(json.dumps(value))
    except QuorumStateError:
        return
    assert isinstance(state.epoch, int)


def test_a_write_that_fails_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = QuorumStateFile(tmp_path)
    file.write(ElectionState(1, 1), 1)

    def failing(fd: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(OSError, match="no space"):
        file.write(ElectionState(2, 1), 1)
    assert file.read() == ElectionState(1, 1)
