"""meta.properties: Java's format both ways, and the checks over all directories."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.ids import Uuid, uuid_from_str
from ottla.storage.dirs.meta_properties import (
    MetaProperties,
    MetaPropertiesError,
    format_meta_properties,
    is_reserved_directory_id,
    parse_meta_properties,
    random_directory_id,
    read_meta_properties,
    verify_ensemble,
    write_meta_properties,
)

WRITTEN_BY_APACHE = """#
#Sun Jan 12 10:00:00 UTC 2025
cluster.id=4L6g3nShT-eMCtK--X86sw
directory.id=wbUcYHTyVUSKOtsIDL2GXA
node.id=1
version=1
"""


def test_a_file_of_apache_is_read() -> None:
    meta = parse_meta_properties(WRITTEN_BY_APACHE, "x")
    assert meta == MetaProperties("4L6g3nShT-eMCtK--X86sw", 1, uuid_from_str("wbUcYHTyVUSKOtsIDL2GXA"))


def test_version_zero_has_a_broker_id() -> None:
    assert parse_meta_properties("broker.id=3\n", "x") == MetaProperties(None, 3, None, version=0)


@given(st.text("abc=:#! \\\t\n\r.-", min_size=1, max_size=20), st.integers(0, 2**31 - 1))
def test_what_is_written_is_read_back(cluster_id: str, node_id: int) -> None:
    meta = MetaProperties("x" + cluster_id, node_id, random_directory_id())
    assert parse_meta_properties(format_meta_properties(meta).decode(), "x") == meta


@given(st.binary(max_size=120))
def test_any_bytes_are_parsed_or_refused(content: bytes) -> None:
    try:
        meta = parse_meta_properties(content.decode("latin-1"), "x")
    except MetaPropertiesError:
        return
    assert meta.version == 0 or meta.node_id is not None


@pytest.mark.parametrize(
    "text",
    [
        "version=2\n",
        "version=1\nnode.id=1\n",
        "version=1\ncluster.id=c\n",
        "version=1\ncluster.id=c\nnode.id=q\n",
        "version=1\ncluster.id=c\nnode.id=1\ndirectory.id=short\n",
    ],
)
def test_bad_files_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(MetaPropertiesError, match=r"^where: [^\n]*$"):
        parse_meta_properties(text, "where")


def test_a_directory_is_formatted_and_read_back(tmp_path: Path) -> None:
    assert read_meta_properties(tmp_path) is None
    meta = MetaProperties("c", 7, random_directory_id())
    write_meta_properties(tmp_path, meta)
    assert read_meta_properties(tmp_path) == meta


def test_an_oversized_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_bytes(b"#" * 100_000)
    with pytest.raises(MetaPropertiesError, match="larger"):
        read_meta_properties(tmp_path)


def test_the_directories_must_agree() -> None:
    first, second = random_directory_id(), random_directory_id()
    one = {Path("a"): MetaProperties("c", 1, first)}
    assert verify_ensemble(one | {Path("b"): MetaProperties("c", 1, second)}) == ("c", 1)
    assert verify_ensemble({}, "c", 5) == ("c", 5)
    for other in (
        MetaProperties("d", 1, second),
        MetaProperties("c", 2, second),
        MetaProperties("c", 1, first),
    ):
        with pytest.raises(MetaPropertiesError):
            verify_ensemble(one | {Path("b"): other})
    with pytest.raises(MetaPropertiesError, match=r"node\.id is 1, expected 9"):
        verify_ensemble(one, node_id=9)


def test_reserved_directory_ids_are_refused() -> None:
    reserved = Uuid(bytes(15) + b"\x02")
    assert is_reserved_directory_id(reserved)
    assert not is_reserved_directory_id(random_directory_id())
    with pytest.raises(MetaPropertiesError, match="reserved"):
        verify_ensemble({Path("a"): MetaProperties("c", 1, reserved)})
