"""The script that Spark's workers are started by: Python, without the archives that would be compiled anew."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ottla.spark import fork_client, fork_server
from ottla.spark.worker_python import is_users_choice, offer_this_python, use_worker_python, worker_python


def told(python: str, pythonpath: str | None) -> str:
    """What a Python that is started like this has for PYTHONPATH."""
    program = "import os, sys; print(os.environ.get('PYTHONPATH'), sys.argv[1:])"
    env = {} if pythonpath is None else {"PYTHONPATH": pythonpath}
    run = subprocess.run(
        [python, "-c", program, "an argument", "*"], env=env, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_it_is_this_python_without_sparks_archives(tmp_path: Path) -> None:
    python = worker_python(sys.executable, {"XDG_CACHE_HOME": str(tmp_path)})
    assert Path(python).is_relative_to(tmp_path)
    archives = (
        "/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10.9.9-src.zip:/s/jars/spark-core_2.13-4.3.0.jar"
    )
    assert told(python, f"{archives}:/my own/code:{archives}:/my/lib.zip") == (
        "/my own/code:/my/lib.zip ['an argument', '*']"
    )
    assert told(python, archives) == "None ['an argument', '*']"
    assert told(python, None) == "None ['an argument', '*']"


def test_it_starts_ottlas_daemon_for_pysparks(tmp_path: Path) -> None:
    echo = worker_python("/bin/echo", {"XDG_CACHE_HOME": str(tmp_path)})

    def started(*words: str) -> str:
        # Without a fork server that another test may have left in the environment.
        run = subprocess.run([echo, *words], capture_output=True, text=True, check=True, env={})
        return run.stdout.strip()

    assert started("-m", "pyspark.daemon", "pyspark.worker") == "-m ottla.spark.daemon pyspark.worker"
    assert started("-m", "pyspark.worker", "pyspark.daemon") == "-m pyspark.worker pyspark.daemon"
    assert started("-c", "-m") == "-c -m"


def test_a_worker_is_a_fork_where_there_is_a_server_and_a_program_is_not(tmp_path: Path) -> None:
    echo = worker_python("/bin/echo", {"XDG_CACHE_HOME": str(tmp_path)})
    address = tmp_path / "s"

    def started(*words: str) -> str:
        env = {fork_server.VARIABLE: str(address)}
        return subprocess.run(
            [echo, *words], capture_output=True, text=True, check=True, env=env
        ).stdout.strip()

    assert started("-m", "pyspark.daemon", "w") == "-m ottla.spark.daemon w"  # nobody listens
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        client = f"-I -S {fork_client.__file__} {address} /bin/echo"
        assert started("-m", "pyspark.daemon", "w") == f"{client} -m ottla.spark.daemon w"
        assert started("-c", "print(1)") == "-c print(1)"


def test_it_is_made_once_and_again_if_somebody_has_changed_it(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    python = Path(worker_python(sys.executable, environ))
    made = python.stat().st_ino
    assert worker_python(sys.executable, environ) == str(python)
    assert python.stat().st_ino == made
    script = python.read_bytes()
    python.write_text("#!/bin/sh\necho no\n")
    assert worker_python(sys.executable, environ) == str(python)
    assert python.read_bytes() == script


def test_a_pyspark_that_only_pythonpath_finds_is_left_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    monkeypatch.setenv("PYTHONPATH", str(Path(pyspark.__file__).parent.parent))
    assert worker_python("/usr/bin/python3", {"XDG_CACHE_HOME": str(tmp_path)}) == "/usr/bin/python3"


def path_with(directory: Path, python: str) -> dict[str, str]:
    directory.mkdir()
    (directory / "python3").symlink_to(python)
    return {"PATH": str(directory)}


def test_spark_gets_this_python_where_the_path_has_another(tmp_path: Path) -> None:
    environ = path_with(tmp_path / "bin", "/bin/sh")
    offer_this_python(environ)
    assert environ["PYSPARK_PYTHON"] == sys.executable
    # A session for this machine still takes its faster script: nobody has chosen this.
    assert not is_users_choice(environ)


def test_spark_gets_this_python_where_the_path_has_none() -> None:
    environ = {"PATH": "/nowhere"}
    offer_this_python(environ)
    assert environ["PYSPARK_PYTHON"] == sys.executable


def test_an_environment_that_is_active_needs_nothing() -> None:
    environ = {"PATH": str(Path(sys.executable).parent)}
    offer_this_python(environ)
    assert "PYSPARK_PYTHON" not in environ


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_what_the_user_has_set_stays(name: str) -> None:
    environ = {"PATH": "/nowhere", name: "/theirs/python"}
    offer_this_python(environ)
    assert environ == {"PATH": "/nowhere", name: "/theirs/python"}
    assert is_users_choice(environ) == (name == "PYSPARK_PYTHON")


def test_a_session_for_this_machine_takes_the_script_unless_the_user_has_chosen(tmp_path: Path) -> None:
    environ = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}
    offer_this_python(environ)
    for _ in range(2):
        use_worker_python(environ)
        assert environ["PYSPARK_PYTHON"] == worker_python(sys.executable, environ) != sys.executable
        assert not is_users_choice(environ)
    environ["PYSPARK_PYTHON"] = "/theirs/python"
    use_worker_python(environ)
    assert environ["PYSPARK_PYTHON"] == "/theirs/python"
