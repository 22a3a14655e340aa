"""Texts, exceptions and Python workers without secrets: what is hidden, in which forms, how workers come to know."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.discreet import (
    DiscreetStream,
    DiscreetWriter,
    accompanied,
    discreetly,
    hiding,
)

PASSWORD = "hunter2-unlikely"
QUOTED = "p\\ss'w\"rd/é&1"


def test_what_others_say_is_cleared_of_secrets() -> None:
    hide = hiding([PASSWORD, "a", "line one\nline two"])
    assert hide(f"key={PASSWORD}, a; line two") == "key=***, a; ***"
    out = io.StringIO()
    stream = DiscreetStream(out, hide)
    print(f"said {PASSWORD}", file=stream, flush=True)  # type: ignore[call-overload]
    stream.writelines(["and ", PASSWORD, "\n", PASSWORD[:5], PASSWORD[5:], "\n"])
    assert out.getvalue() == "said ***\nand ***\n***\n"
    secrets = {"A": PASSWORD}
    with pytest.raises(RuntimeError, match=r"^ValueError: no \*\*\* here$") as caught, discreetly(secrets):
        raise ValueError(f"no {PASSWORD} here")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(RuntimeError, match=r"^ValueError: outer$"), discreetly(secrets):
        raise ValueError("outer") from KeyError(PASSWORD)
    with pytest.raises(KeyError, match="plain"), discreetly(secrets):
        raise KeyError("plain")

    def write(batch: Any, batch_id: int) -> None:
        raise OSError(f"{batch} {PASSWORD}")

    with pytest.raises(RuntimeError, match=r"^OSError: rows \*\*\*$"):
        DiscreetWriter(write, secrets)("rows", 1)


@pytest.mark.parametrize(
    "said",
    [
        QUOTED,
        repr(QUOTED),
        json.dumps(QUOTED),
        json.dumps(QUOTED, ensure_ascii=False),
        str(KeyError(QUOTED)),
        "http://u:p%5Css%27w%22rd%2F%C3%A9%261@host",
        "pw=p%5Css%27w%22rd/%C3%A9%261",
        "cFxzcyd3InJkL8OpJjE=",
    ],
)
def test_those_who_quote_it_are_understood(said: str) -> None:
    hidden = hiding([QUOTED])(said)
    assert "***" in hidden
    assert "rd" not in hidden


def test_only_what_holds_a_secret_is_accompanied() -> None:
    plain = pickle.dumps(["nothing"])
    assert accompanied(plain, [PASSWORD]) is plain
    for held in (f"Bearer {PASSWORD}", PASSWORD.encode(), {"key": PASSWORD}):
        made = accompanied(pickle.dumps(held), [PASSWORD, "another-secret"])
        assert b"another-secret" not in made
        assert made != pickle.dumps(held)


WORKER = """
import io, pickle, sys
from pyspark.serializers import CloudPickleSerializer
from pyspark.util import handle_worker_exception

function = CloudPickleSerializer().loads(open(sys.argv[1], "rb").read())
print("said", function())
print("said", function(), file=sys.stderr)
out = io.BytesIO()
try:
    try:
        raise KeyError(function())
    except KeyError as error:
        raise ValueError("no " + function()) from error
except ValueError as error:
    handle_worker_exception(error, out)
sys.stdout.flush()
sys.stdout.buffer.write(out.getvalue())
"""


@pytest.mark.parametrize(
    "environment", [{}, {"SPARK_TRACEBACK_WITH_LOCALS": "1"}, {"SPARK_HIDE_TRACEBACK": "1"}]
)
def test_a_worker_knows_what_its_function_brings(tmp_path: Path, environment: dict[str, str]) -> None:
    """In processes of their own, since both sides change PySpark."""
    driver = (
        "import sys\n"
        "from pyspark.serializers import CloudPickleSerializer\n"
        "from ottla.spark.pipeline.discreet import guard\n"
        f"token = {PASSWORD!r}\n"
        "guard([token]); guard([token])\n"
        "header = 'Bearer ' + token\n"
        "open(sys.argv[1], 'wb').write(CloudPickleSerializer().dumps(lambda: header))\n"
    )
    file = str(tmp_path / "function")
    subprocess.run([sys.executable, "-c", driver, file], check=True)
    done = subprocess.run(
        [sys.executable, "-c", WORKER, file],
        capture_output=True,
        check=True,
        env={**os.environ, **environment},
    )
    assert PASSWORD.encode() not in done.stdout + done.stderr
    assert done.stdout.startswith(b"said Bearer ***\n")
    assert done.stderr == b"said Bearer ***\n"
    assert b"ValueError: no Bearer ***" in done.stdout
