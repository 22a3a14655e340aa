"""Every test of the kernel runs on both implementations; the compiled one must be there for its half to count."""

from types import ModuleType, SimpleNamespace

import pytest

from ottla.records import (
    _columns_py,
    _kernel_py,
    batch,
    compaction,
    record,
)

try:
    from ottla.records import _kernel
except ImportError:  # no compiler on this machine: the twin is what users get here too
    _kernel = None


def implementation(name: str) -> ModuleType:
    if name == "c":
        if _kernel is None:
            pytest.skip("the compiled kernel is not built here")
        return _kernel
    return _kernel_py


@pytest.fixture(params=["c", "python"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    return implementation(request.param)


@pytest.fixture(params=["c", "python"])
def offset_map(request: pytest.FixtureRequest) -> type:
    if request.param == "c":
        return implementation("c").OffsetMap
    return _kernel_py.OffsetMap


@pytest.fixture(params=["c", "python"])
def columns(request: pytest.FixtureRequest) -> ModuleType | SimpleNamespace:
    """The column side of the kernel: ColumnBuilder, encode_columns, murmur2_partitions, split_rows."""
    if request.param == "c":
        return implementation("c")
    return SimpleNamespace(**{**vars(_columns_py), **vars(_columns_py)})


@pytest.fixture(params=["c", "python"])
def on_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The modules above the kernel, running on one or the other."""
    chosen = implementation(request.param)
    for module in (batch, record, compaction):
        for name in ("crc32c", "decode_records", "encode_records", "rebuild_records"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(chosen, name))
    return request.param
