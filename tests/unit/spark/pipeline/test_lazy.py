"""What is imported when: the package costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_importing_the_names_imports_neither_pyspark_nor_pyarrow() -> None:
    code = "import sys; from ottla.spark import pipeline, topic, parquet, delta, iceberg; "
    code += "print({'pyspark', 'pyarrow', 'fastavro', 'deltalake', 'pyiceberg'} & {*sys.modules})"
    assert run(code) == "set()"


def test_session_is_the_function_however_its_module_was_imported() -> None:
    assert run("from ottla.spark import session; print(callable(session))") == "True"
    code = "import ottla.spark.session; from ottla.spark.session import session as one; "
    assert run(code + "from ottla.spark import session as two; print(one is two)") == "True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    code = (
        "import ottla.spark\ntry:\n    ottla.spark.nothing\nexcept AttributeError as error:\n    print(error)"
    )
    assert run(code) == "module 'ottla.spark' has no attribute 'nothing'"
