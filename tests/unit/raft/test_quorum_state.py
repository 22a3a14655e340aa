"""The quorum-state file: Kafka's bytes, nothing guessed, replaced whole."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.raft.quorum_state import ElectionState, QuorumStateError, QuorumStateFile
from ottla.raft.voters import ReplicaKey

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
    ["", "{", "[]", "{}", STATIC.replace('_version":0', '_version":7'), DYNAMIC.replace('"votedId":-1,', "")],
)
def test_what_is_no_quorum_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "quorum-state").write_text(text)
    with pytest.raises(QuorumStateError, match="quorum-state"):
        QuorumStateFile(tmp_path).read()


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
