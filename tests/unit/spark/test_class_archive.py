"""When Java is told to use an archive of classes, when to make one, and which archives are not trusted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ottla.spark.class_archive import MAKING, NOTE, UNUSED_S, archive_of, archive_options, boot_time_s
from ottla.spark.java import Java

JAVA = Java(Path("/jvm"), 17, "17.0.1+1")
AOT = Java(Path("/jvm"), 25, "25+1")
LONG_AGO = 1.0


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path)}


def made(environ: dict[str, str], content: bytes = b"head and the rest", java: Java = JAVA) -> Path:
    path = archive_of(java, environ)
    assert path is not None
    path.write_bytes(content)
    path.chmod(0o444)
    return path


def options(
    environ: dict[str, str],
    java: Java = JAVA,
    *,
    users: str = "",
    learn: bool = True,
    booted_s: float = LONG_AGO,
) -> list[str]:
    return archive_options(java, users, environ, learn=learn, booted_s=booted_s)


def test_a_pipeline_has_java_make_one_and_the_next_session_uses_it(environ: dict[str, str]) -> None:
    path = archive_of(JAVA, environ)
    assert options(environ, learn=False) == []
    assert options(environ) == [f"-XX:ArchiveClassesAtExit={path}", "-Xlog:cds*=off"]
    assert options(environ) == []  # another one is about to make it
    made(environ)
    used = [f"-XX:SharedArchiveFile={path}", "-XX:+VerifySharedSpaces", "-Xlog:cds*=off"]
    assert options(environ, learn=False) == used
    assert options(environ) == used


def test_a_newer_java_keeps_profiles_too(environ: dict[str, str]) -> None:
    path = archive_of(AOT, environ)
    assert path is not None
    assert path.suffix == ".aot"
    assert options(environ, AOT)[0] == f"-XX:AOTCacheOutput={path}"
    made(environ, java=AOT)
    assert options(environ, AOT)[0] == f"-XX:AOTCache={path}"


def test_each_java_has_its_own(environ: dict[str, str]) -> None:
    others = (JAVA._replace(build="17.0.2+1"), JAVA._replace(home=Path("/other")), AOT)
    assert len({archive_of(java, environ) for java in (JAVA, *others)}) == 4
    assert archive_of(JAVA._replace(build=""), environ) is None
    assert options(environ, JAVA._replace(build="")) == []


@pytest.mark.parametrize(
    "users", ["-XX:SharedArchiveFile=/mine", "-Xshare:off", "-XX:+AutoCreateSharedArchive", "-XX:AOTCache=x"]
)
def test_what_the_user_says_of_classes_stays(environ: dict[str, str], users: str) -> None:
    assert options(environ, users=f"-Xmx1g {users}") == []
    assert options({**environ, "JDK_JAVA_OPTIONS": users}) == []


def test_it_can_be_turned_off(environ: dict[str, str]) -> None:
    assert options({**environ, "OTTLA_CLASS_ARCHIVE": "off"}) == []


def test_one_that_is_being_written_is_not_used(environ: dict[str, str]) -> None:
    path = made(environ, bytes(4) + b"the head comes last")
    assert options(environ) == []
    assert path.exists()
    long_ago = time.time() - 4000
    os.utime(path, (long_ago, long_ago))  # its Java was killed
    assert options(environ)[0].startswith("-XX:ArchiveClassesAtExit=")


def test_one_that_the_machine_may_have_lost_a_part_of_is_made_anew(environ: dict[str, str]) -> None:
    path = made(environ)
    assert options(environ, booted_s=time.time() + 10)[0].startswith("-XX:ArchiveClassesAtExit=")
    assert not path.exists()


def test_one_that_is_known_to_be_on_disk_survives_a_restart_of_the_machine(environ: dict[str, str]) -> None:
    path = made(environ)
    assert options(environ)
    assert options(environ, booted_s=time.time() + 10) == options(environ)
    os.truncate(path, 5)
    assert options(environ, learn=False, booted_s=time.time() + 10) == []
    assert not path.exists()


def test_another_one_in_its_place_is_noted_anew(environ: dict[str, str]) -> None:
    path = made(environ)
    assert options(environ)
    path.unlink()
    made(environ, b"of a pipeline that ran for long")
    assert options(environ)[0] == f"-XX:SharedArchiveFile={path}"


def test_one_that_others_could_have_written_is_not_used(environ: dict[str, str]) -> None:
    made(environ).chmod(0o666)
    assert options(environ) == []


def test_those_that_nobody_uses_go(environ: dict[str, str]) -> None:
    other = JAVA._replace(build="16")
    old = made(environ, java=other)
    assert options(environ, other)
    note = old.with_name(old.name + NOTE)
    long_ago = time.time() - UNUSED_S - 10
    os.utime(note, (long_ago, long_ago))
    assert options(environ)
    assert not old.exists()
    assert not note.exists()
    path = archive_of(JAVA, environ)
    assert path is not None
    assert path.with_name(path.name + MAKING).exists()


def test_when_the_machine_started() -> None:
    assert 0 < boot_time_s() <= time.time()


def test_a_full_disk_is_no_reason_to_do_without_spark(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(environ)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ottla.spark.class_archive.write_atomically", full)
    assert options(environ) == []
    monkeypatch.undo()
    assert options(environ)
