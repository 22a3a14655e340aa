"""`ottla log dump`: the lines are kafka-dump-log's, whatever the file."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.cli.log.decoders import camel_case
from ottla.cli.main import main
from ottla.metadata.records import FeatureLevelRecord
from ottla.metadata.serde import encode_frame
from ottla.records.control import end_txn_marker
from ottla.records.record import build_batch
from ottla.storage.producers.entry import SnapshotEntry, write_snapshot
from ottla.wire.codec import encode
from ottla.wire.messages.logs.offsets import OffsetCommitKey, OffsetCommitValue

Capture = pytest.CaptureFixture[str]
NOW = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two batches of records and a transaction's end."""
    first = build_batch(
        [(NOW, b"k", b"v", (("h", b"1"), ("x", None))), (NOW + 1, None, "grüß".encode(), ())],
        base_offset=0,
        leader_epoch=3,
    )
    second = build_batch(
        [(NOW + 2, b"k", None, ())],
        base_offset=2,
        compression=1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
        leader_epoch=3,
    )
    marker = end_txn_marker(
        committed=True,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=5,
        timestamp_ms=NOW + 3,
        base_offset=3,
        leader_epoch=3,
    )
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(bytes(first) + bytes(second) + bytes(marker))
    return file


def _dump(capsys: Capture, *words: object) -> tuple[int, list[str], str]:
    code = main(["log", "dump", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_batches_are_a_line_each(log: Path, capsys: Capture) -> None:
    code, out, err = _dump(capsys, "--files", log)
    assert (code, err) == (0, "")
    assert out[:2] == [f"Dumping {log}", "Log starting offset: 0"]
    assert out[2].startswith(
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
        "partitionLeaderEpoch: 3 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        f"position: 0 CreateTime: {NOW + 1} size: "
    )
    assert out[2].endswith("isvalid: true")
    assert "isTransactional: true isControl: false" in out[3]
    assert "compresscodec: gzip" in out[3]
    assert "isControl: true" in out[4]
    assert len(out) == 5


def test_records_are_a_line_each_with_their_contents(log: Path, capsys: Capture) -> None:
    _, out, _ = _dump(capsys, log, "--print-data-log")
    records = [line for line in out if line.startswith("|")]
    assert records == [
        f"| offset: 0 CreateTime: {NOW} keySize: 1 valueSize: 1 sequence: -1 headerKeys: [h,x] key: k payload: v",
        f"| offset: 1 CreateTime: {NOW + 1} keySize: -1 valueSize: 6 sequence: -1 headerKeys: [] payload: grüß",
        f"| offset: 2 CreateTime: {NOW + 2} keySize: 1 valueSize: -1 sequence: 0 headerKeys: [] key: k",
        f"| offset: 3 CreateTime: {NOW + 3} keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] "
        "endTxnMarker: COMMIT coordinatorEpoch: 5",
    ]


def test_contents_without_metadata(log: Path, capsys: Capture) -> None:
    _, out, _ = _dump(capsys, log, "--print-data-log", "--skip-record-metadata")
    assert "| key: k payload: v" in out
    assert "| payload: grüß" in out


def test_json_is_an_object_a_line(log: Path, capsys: Capture) -> None:
    code, out, _ = _dump(capsys, log, "--print-data-log", "-o", "json")
    batches = [json.loads(line) for line in out]
    assert code == 0
    assert [batch["baseOffset"] for batch in batches] == [0, 2, 3]
    assert batches[0]["records"][1]["payload"] == "grüß"
    assert batches[0]["records"][0]["headerKeys"] == ["h", "x"]
    assert batches[2]["records"][0]["control"] == "endTxnMarker: COMMIT coordinatorEpoch: 5"


def test_a_torn_tail_is_counted(log: Path, capsys: Capture) -> None:
    log.write_bytes(log.read_bytes()[:-5])
    code, out, _ = _dump(capsys, log)
    assert code == 1
    assert out[-1].startswith("Found ")
    assert out[-1].endswith(" invalid bytes at the end of 00000000000000000000.log")


def test_zeros_at_the_end_are_no_batches(log: Path, capsys: Capture) -> None:
    with log.open("ab") as file:
        file.write(bytes(100))
    code, out, err = _dump(capsys, log)
    assert code == 1
    assert out[-1] == "Found 100 invalid bytes at the end of 00000000000000000000.log"
    assert "Batch length 0" in err


def test_a_flipped_bit_makes_a_batch_invalid(log: Path, capsys: Capture) -> None:
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    code, out, _ = _dump(capsys, log)
    assert code == 1
    assert out[2].endswith("isvalid: false")
    assert out[3].endswith("isvalid: true")


def test_only_so_many_bytes(log: Path, capsys: Capture) -> None:
    code, out, _ = _dump(capsys, log, "--max-bytes", "100")
    assert code == 0
    assert len(out) == 3


def test_json_stays_json_where_records_cannot_be_read(log: Path, capsys: Capture) -> None:
    raw = bytearray(log.read_bytes())
    raw[61] ^= 0xFF  # the length of the first record
    log.write_bytes(raw)
    code, out, _ = _dump(capsys, log, "--deep-iteration", "-o", "json")
    batches = [json.loads(line) for line in out]
    assert code == 1
    assert "Invalid record 0" in batches[0]["error"]
    assert [len(batch["records"]) for batch in batches] == [0, 1, 1]
    assert "error" not in batches[1]
    assert any(line.startswith("| Invalid record 0") for line in _dump(capsys, log, "--deep-iteration")[1])


def test_gaps_are_told_but_are_no_damage(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "00000000000000000005.log"
    file.write_bytes(bytes(build_batch([(NOW, None, b"a", ())], base_offset=5)))
    code, _, err = _dump(capsys, file, "--deep-iteration")
    assert code == 0
    assert err == f"Non-consecutive offsets in {file}\n  -1 is followed by 5\n"


def test_an_index_is_printed_and_held_against_its_log(log: Path, capsys: Capture) -> None:
    index = log.with_suffix(".index")
    second = struct.unpack_from(">i", log.read_bytes(), 8)[0] + 12
    index.write_bytes(struct.pack(">ii", 2, second) + bytes(32))
    code, out, err = _dump(capsys, index)
    assert (code, err) == (0, "")
    assert out == [f"Dumping {index}", f"offset: 2 position: {second}"]
    index.write_bytes(struct.pack(">ii", 1, second))
    code, out, err = _dump(capsys, index, "--verify-index-only")
    assert (code, out) == (1, [f"Dumping {index}"])
    assert err == f"Mismatches in :{index}\n  Index offset: 1, log offset: 2\n"


def test_a_time_index_is_printed_and_held_against_its_log(log: Path, capsys: Capture) -> None:
    index = log.with_suffix(".timeindex")
    index.write_bytes(struct.pack(">qi", NOW + 1, 1) + struct.pack(">qi", NOW + 2, 2))
    code, out, err = _dump(capsys, index)
    assert (code, err) == (0, "")
    assert out[1:] == [f"timestamp: {NOW + 1} offset: 1", f"timestamp: {NOW + 2} offset: 2"]
    index.write_bytes(
        struct.pack(">qi", NOW + 9, 1) + struct.pack(">qi", NOW + 2, 2) + struct.pack(">qi", NOW + 9, 9)
    )
    code, _, err = _dump(capsys, index)
    assert code == 1
    assert f"  Index timestamp: {NOW + 9}, log timestamp: {NOW + 1}" in err
    assert f"  Index timestamp: {NOW + 2}, Previously indexed timestamp: {NOW + 9}" in err
    assert "Indexed offset: 9, found log offset: -1" in err


def test_what_an_index_points_at_may_be_no_batch(log: Path, capsys: Capture) -> None:
    second = struct.unpack_from(">i", log.read_bytes(), 8)[0] + 12
    index = log.with_suffix(".index")
    index.write_bytes(struct.pack(">ii", 1, second - 5) + struct.pack(">ii", 2, second))
    code, out, err = _dump(capsys, index, log)
    assert code == 1
    assert out[1:4] == [
        f"offset: 1 position: {second - 5}",
        f"offset: 2 position: {second}",
        f"Dumping {log}",
    ]
    assert err == f"Mismatches in :{index}\n  Index offset: 1, log offset: -1\n"


def test_what_a_time_index_points_at_may_be_unreadable(log: Path, capsys: Capture) -> None:
    raw = bytearray(log.read_bytes())
    raw[61] ^= 0xFF  # the length of the first record
    log.write_bytes(raw)
    index = log.with_suffix(".timeindex")
    index.write_bytes(struct.pack(">qi", NOW + 1, 1) + struct.pack(">qi", NOW + 2, 2))
    code, out, err = _dump(capsys, index)
    assert (code, len(out)) == (1, 3)
    assert f"  Index timestamp: {NOW + 1}, log timestamp: -1" in err


def test_the_sanity_of_an_index(log: Path, capsys: Capture) -> None:
    index = log.with_suffix(".index")
    index.write_bytes(struct.pack(">ii", 2, 0))
    code, out, _ = _dump(capsys, index, "--index-sanity-check")
    assert (code, out[-1]) == (0, f"{index} passed sanity check.")
    index.write_bytes(bytes(11))
    code, _, err = _dump(capsys, index, "--index-sanity-check")
    assert code == 1
    assert "its size 11 is no multiple of 8; a broker would rebuild it" in err


def test_an_empty_index(log: Path, capsys: Capture) -> None:
    index = log.with_suffix(".index")
    index.write_bytes(b"")
    assert _dump(capsys, index)[:2] == (0, [f"Dumping {index}", f"{index} is empty."])


def test_aborted_transactions(tmp_path: Path, capsys: Capture) -> None:
    index = tmp_path / "00000000000000000000.txnindex"
    index.write_bytes(struct.pack(">hqqqq", 0, 7, 1, 5, 6))
    _, out, _ = _dump(capsys, index)
    assert out[1] == "version: 0 producerId: 7 firstOffset: 1 lastOffset: 5 lastStableOffset: 6"


def test_a_snapshot_of_producers(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "00000000000000000009.snapshot"
    write_snapshot(
        file,
        [SnapshotEntry(7, 0, 4, 8, 4, NOW, -1, -1), SnapshotEntry(8, 1, -1, -1, 0, NOW, 2, 30)],
        sync=False,
    )
    _, out, _ = _dump(capsys, file)
    assert out[1] == (
        f"producerId: 7 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty "
        f"lastTimestamp: {NOW} firstSequence: 0 lastSequence: 4 lastOffset: 8 offsetDelta: 4 timestamp: {NOW}"
    )
    assert out[2] == (
        "producerId: 8 producerEpoch: 1 coordinatorEpoch: 2 currentTxnFirstOffset: OptionalLong[30] "
        f"lastTimestamp: {NOW}"
    )


def test_the_metadata_of_the_cluster(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "00000000000000000000.log"
    record = FeatureLevelRecord(name="metadata.version", feature_level=30)
    batch = build_batch([(NOW, None, encode_frame(record, 0), ()), (NOW, None, b"\x63", ())], base_offset=0)
    file.write_bytes(bytes(batch))
    _, out, _ = _dump(capsys, file, "--cluster-metadata-decoder")
    assert out[3].endswith(
        ' payload: {"type":"FEATURE_LEVEL_RECORD","version":0,"data":{"name":"metadata.version","featureLevel":30}}'
    )
    assert "payload: Error at 1, skipping." in out[4]


def test_committed_offsets(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "00000000000000000000.log"
    key = struct.pack(">h", 1) + encode(OffsetCommitKey(group="g", topic="t", partition=2), 0)
    value = struct.pack(">h", 3) + encode(OffsetCommitValue(offset=5, metadata="m", commit_timestamp=NOW), 3)
    unknown = struct.pack(">h", 999)
    file.write_bytes(
        bytes(
            build_batch(
                [(NOW, key, value, ()), (NOW, key, None, ()), (NOW, unknown, b"", ()), (NOW, None, b"", ())],
                base_offset=0,
            )
        )
    )
    _, out, _ = _dump(capsys, file, "--offsets-decoder", "--skip-record-metadata")
    shown = '| key: {"type":"1","data":{"group":"g","topic":"t","partition":2}} payload: '
    assert out[3:] == [
        f'{shown}{{"version":"3","data":{{"offset":5,"leaderEpoch":-1,"metadata":"m","commitTimestamp":{NOW}}}}}',
        f"{shown}<DELETE>",
        "| key: Unknown record type 999 at offset 2, skipping.",
        "| key: Error at offset 3, skipping. The key is missing or too short",
    ]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "ottla: which files? see `ottla log dump --help`\n"),
        (["/no/such.log"], 1, "ottla: /no/such.log: there is no such file\n"),
    ],
)
def test_files_that_are_not_there(words: list[str], code: int, message: str, capsys: Capture) -> None:
    assert _dump(capsys, *words)[::2] == (code, message)


def test_files_that_are_no_part_of_a_log(tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "meta.properties"
    other.write_text("x")
    assert _dump(capsys, other)[::2] == (1, f"Ignoring unknown file {other}\n")
    named = tmp_path / "notes.log"
    named.write_text("x")
    code, _, err = _dump(capsys, named)
    assert (code, err.count("\n")) == (1, 1)
    assert "does not begin with an offset" in err


def test_names_of_fields() -> None:
    assert [camel_case(name) for name in ("leader_epoch", "isr", "kraft_version", "from_")] == [
        "leaderEpoch",
        "isr",
        "kRaftVersion",
        "from",
    ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"]),
    st.one_of(st.binary(max_size=200), st.tuples(st.integers(0, 250), st.integers(0, 255))),
)
def test_no_damage_is_a_bug(
    tmp_path: Path, capsys: Capture, suffix: str, damage: bytes | tuple[int, int]
) -> None:
    """Random bytes, or a good batch with one byte changed: a line for the user and never an internal error."""
    good = bytes(
        build_batch([(NOW, b"key", b"value" * 20, (("h", b"1"),))] * 2, base_offset=0, compression=1)
    )
    if isinstance(damage, bytes):
        content = damage
    else:
        at, byte = damage[0] % len(good), damage[1]
        content = good[:at] + bytes([byte]) + good[at + 1 :]
    (tmp_path / "00000000000000000000.log").write_bytes(good)
    name = "00000000000000000000-0000000000.checkpoint" if suffix == ".checkpoint" else f"{0:020}{suffix}"
    (tmp_path / name).write_bytes(content)
    for options in ((), ("--print-data-log",), ("--cluster-metadata-decoder",), ("--index-sanity-check",)):
        code, _, err = _dump(capsys, tmp_path / name, *options)
        assert code in (0, 1)
        assert "internal error" not in err


def test_talk_does_not_mix_with_json(tmp_path: Path, capsys: Capture) -> None:
    index = tmp_path / "00000000000000000000.index"
    index.touch()
    assert main(["log", "dump", "-o", "json", str(index)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"{index} is empty.\n")
