"""The language of declarations: what a declared class is and knows."""

import subprocess
import sys

import pytest

from ottla.model.ids import ZERO_UUID
from ottla.wire.messages.fetch import FetchRequest, PartitionData, ReplicaState
from ottla.wire.messages.groups.classic import HeartbeatRequest, HeartbeatResponse
from ottla.wire.schema import (
    Array,
    Int8,
    Int32,
    String,
    UuidField,
    between,
    data,
    field,
    message,
    parse_versions,
    schema_of,
    since,
    struct,
    tagged,
    until,
)


@struct
class Part:
    """A part."""

    number: Int32 = -1
    text: String = between(1, 2, default="t", ignorable=True)


@data(versions="0-3", flexible="2+", api_key=7)
class Whole:
    """A whole."""

    name: String
    parts: list[Part] | None = field(nullable="1+")
    level: Int8 = tagged(4, since=2, default=9)
    first: Part = tagged(1, since=2, default=Part)
    old: UuidField = until(1, default=ZERO_UUID)

    def twice(self) -> str:
        return self.name * 2


def test_a_class_knows_its_place() -> None:
    assert (7, range(4)) == (Whole.API_KEY, Whole.VALID_VERSIONS)  # type: ignore[attr-defined]
    assert schema_of(Whole).flexible_from == 2
    schema = schema_of(HeartbeatRequest)
    assert (schema.api_key, schema.versions, schema.flexible_from) == (12, range(5), 4)
    assert (schema.name, schema.role) == ("HeartbeatRequest", "request")
    assert schema_of(HeartbeatResponse).role == "response"
    assert schema.is_flexible(4)
    assert not schema.is_flexible(3)


def test_fields_are_resolved_with_their_versions() -> None:
    fields = {f.name: f for f in schema_of(Whole).fields}
    parts, level, old = fields["parts"], fields["level"], fields["old"]
    assert parts.kind == Array(Part)
    assert [parts.is_nullable_in(v) for v in range(3)] == [False, True, True]
    assert (level.tag, level.default, level.is_in(1), level.is_in(2)) == (4, 9, False, True)
    assert old.is_in(1)
    assert not old.is_in(2)
    assert {f.name: f.ignorable for f in schema_of(Part).fields} == {"number": False, "text": True}


def test_every_field_has_a_default() -> None:
    whole = Whole()  # type: ignore[call-arg]
    assert (whole.name, whole.parts, whole.level, whole.first, whole.old) == ("", [], 9, Part(), ZERO_UUID)
    assert FetchRequest().replica_state == ReplicaState(replica_id=-1, replica_epoch=-1)  # type: ignore[call-arg]


def test_lists_and_structs_are_not_shared_between_instances() -> None:
    one, other = Whole(name="a"), Whole(name="a")  # type: ignore[call-arg]
    one.parts.append(Part())  # type: ignore[union-attr]
    one.first.number = 5
    assert other == Whole(name="a", parts=[])
    assert one != other


def test_instances_compare_by_value_and_have_slots() -> None:
    assert Part(number=1) == Part(number=1) != Part(number=2)
    assert Part() != object()
    with pytest.raises(AttributeError):
        Part().nubmer = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Part(nubmer=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hash(Part())


def test_a_declaration_may_have_methods_and_a_docstring() -> None:
    assert Whole(name="ab", parts=None).twice() == "abab"
    assert Whole.__doc__ == "A whole."


def test_repr_reads_like_the_constructor() -> None:
    assert repr(Part(number=3)) == "Part(number=3, text='t')"


@pytest.mark.parametrize(
    ("text", "versions"), [("3", (3, 3)), ("3+", (3, 0x7FFF)), ("0-4", (0, 4)), ("none", (1, 0))]
)
def test_versions(text: str, versions: tuple[int, int]) -> None:
    assert parse_versions(text) == versions


def test_nullable_versions_need_a_nullable_type() -> None:
    @message(api_key=1, versions="0")
    class WrongRequest:
        name: String = field(nullable="0+")

    with pytest.raises(AssertionError):
        schema_of(WrongRequest).fields  # noqa: B018


def test_a_field_of_no_known_type_is_an_error() -> None:
    @message(api_key=1, versions="0")
    class WrongRequest:
        name: str = since(0, default="")

    with pytest.raises(AssertionError):
        schema_of(WrongRequest).fields  # noqa: B018


def test_nullable_structs_of_a_partition_start_as_declared() -> None:
    partition = PartitionData(partition_index=0, high_watermark=1, aborted_transactions=None, records=None)
    assert partition.diverging_epoch.epoch == -1
    assert partition.preferred_read_replica == -1


def test_importing_one_family_imports_no_other() -> None:
    code = (
        "import sys; import ottla.wire.messages.fetch; from ottla.wire.framing import RequestHeader;"
        "print(sorted(m for m in sys.modules if m.startswith('ottla.wire.messages.')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['ottla.wire.messages.fetch']"
