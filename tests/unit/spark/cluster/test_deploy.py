"""What `ottla pipeline deploy` writes, held against schemas; no secret is in any of it.

Kubernetes' own, and narrower ones of the parts that are used; the Spark operator's is in tests/interop.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

pytest.importorskip("pyspark")

from ottla.cli.main import main
from ottla.spark.cluster import deploy
from ottla.spark.cluster.deploy import Deployment, job, object_name, spark_application, unit
from ottla.spark.cluster.environment import PackageError, Packed, packed_text

# A schema is a type, a pattern of text, a list of one schema, or a mapping: a key that ends with '?' may be missing, no
# other key may be there, and '*' stands for all keys.
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
ANY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SIZE = re.compile(r"\d+(Gi|Mi|g|m)?")
TEXT = re.compile(r".+", re.S)
PATH = re.compile(r"/[^:]*")
LABELS = {"*": re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")}
METADATA = {"name": NAME, "labels": LABELS, "namespace?": NAME}
PLAIN = {"name": ANY_NAME, "value": str}
BY_REFERENCE = {
    "name": ANY_NAME,
    "valueFrom": {"secretKeyRef": {"name": NAME, "key": re.compile(r"[A-Za-z0-9._-]+")}},
}
ENVIRONMENT = [(PLAIN, BY_REFERENCE)]
MOUNTS = [{"name": NAME, "mountPath": PATH, "readOnly": bool}]
ITEMS = [{"key": re.compile(r"[A-Za-z0-9._-]{1,253}"), "path": re.compile(r"(?!/)(?!.*\.\.).+")}]
VOLUMES = [
    (
        {"name": NAME, "configMap": {"name": NAME, "items": ITEMS}},
        {"name": NAME, "secret": {"secretName": NAME}},
    )
]
CONTAINER = {
    "name": NAME,
    "image": TEXT,
    "command": [TEXT],
    "args": [TEXT],
    "env": ENVIRONMENT,
    "volumeMounts": MOUNTS,
    "resources": {"requests": {"cpu": SIZE, "memory": SIZE}, "limits": {"memory": SIZE}},
    "securityContext": {"allowPrivilegeEscalation": bool},
}
CONFIG_MAP = {
    "apiVersion": re.compile("v1"),
    "kind": re.compile("ConfigMap"),
    "metadata": METADATA,
    "data": {"*": str},
}
JOB = {
    "apiVersion": re.compile("batch/v1"),
    "kind": re.compile("Job"),
    "metadata": METADATA,
    "spec": {
        "backoffLimit": int,
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "restartPolicy": re.compile("OnFailure|Never"),
                "terminationGracePeriodSeconds": int,
                "containers": [CONTAINER],
                "volumes": VOLUMES,
            },
        },
    },
}
POD = {"cores": int, "memory": SIZE, "env": ENVIRONMENT, "labels": LABELS, "volumeMounts": MOUNTS}
SPARK_APPLICATION = {
    "apiVersion": re.compile(r"sparkoperator\.k8s\.io/v1beta2"),
    "kind": re.compile("SparkApplication"),
    "metadata": METADATA,
    "spec": {
        "type": re.compile("Python"),
        "pythonVersion": re.compile("3"),
        "mode": re.compile("cluster"),
        "image": TEXT,
        "sparkVersion": re.compile(r"\d+\.\d+\.\d+.*"),
        "mainApplicationFile": re.compile(r"local:///.+\.py"),
        "arguments": [TEXT],
        "restartPolicy": {
            "type": re.compile("OnFailure"),
            "onFailureRetries": int,
            "onFailureRetryInterval": int,
        },
        "volumes": VOLUMES,
        "driver": {**POD, "serviceAccount": NAME},
        "executor": {**POD, "instances": int},
    },
}
LIST = {"apiVersion": re.compile("v1"), "kind": re.compile("List")}


def violations(found: Any, schema: Any, at: str = "") -> list[str]:
    """Every place that is not as the schema has it."""
    if isinstance(schema, tuple):
        tried = [violations(found, one, at) for one in schema]
        return [] if [] in tried else min(tried, key=len)
    if isinstance(schema, re.Pattern):
        return [] if isinstance(found, str) and schema.fullmatch(found) else [f"{at}: {found!r}"]
    if isinstance(schema, list):
        if not isinstance(found, list):
            return [f"{at}: no list"]
        return [line for n, one in enumerate(found) for line in violations(one, schema[0], f"{at}[{n}]")]
    if isinstance(schema, dict):
        return _violations_of_mapping(found, schema, at)
    return [] if type(found) is schema else [f"{at}: {found!r} is no {schema.__name__}"]


def _violations_of_mapping(found: Any, schema: dict[str, Any], at: str) -> list[str]:
    if not isinstance(found, dict):
        return [f"{at}: no mapping"]
    if "*" in schema:
        return [
            line for key, value in found.items() for line in violations(value, schema["*"], f"{at}.{key}")
        ]
    known = {key.rstrip("?"): value for key, value in schema.items()}
    missing = [key for key in schema if not key.endswith("?") and key not in found]
    return [
        *(f"{at}.{key}: missing" for key in missing),
        *(f"{at}.{key}: unknown" for key in found.keys() - known.keys()),
        *(
            line
            for key in found.keys() & known.keys()
            for line in violations(found[key], known[key], f"{at}.{key}")
        ),
    ]


DEPLOYMENT = Deployment(
    name="Clicks_per.minute",
    file="clicks.py",
    bootstrap="broker:9092",
    checkpoint_dir="s3a://bucket/checkpoints",
    variables={"LAKE": "/data/lake of ours"},
    secrets={"DB_PASSWORD": ("db", "password")},
    client_secret="kafka-client",
    image="registry.example/spark-ottla:1",
    namespace="streams",
    spark_version="4.3.0",
    files=(packed_text("clicks.py", "x = 1\n"), packed_text("tools/__init__.py", "")),
)


@pytest.mark.parametrize(
    "deployment",
    [DEPLOYMENT, replace(DEPLOYMENT, secrets={}, client_secret=None, namespace=None, variables={})],
)
def test_the_documents_are_as_the_schema_has_them(deployment: Deployment) -> None:
    for made, schema in ((job(deployment), JOB), (spark_application(deployment), SPARK_APPLICATION)):
        config_map, document = made.pop("items")
        assert violations(made, LIST) == []
        assert violations(config_map, CONFIG_MAP) == []
        assert violations(document, schema) == []


@pytest.mark.parametrize("version", ["1.31", "1.35"])
def test_kubernetes_has_such_jobs(version: str) -> None:
    for document in job(DEPLOYMENT)["items"]:
        kubernetes_validate.validate(document, version, strict=True)
    document["spec"]["template"]["spec"]["restarts"] = "OnFailure"
    with pytest.raises(kubernetes_validate.ValidationError, match="restarts"):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_finds_what_is_wrong() -> None:
    made = job(DEPLOYMENT)["items"][1]
    pod = made["spec"]["template"]["spec"]
    pod["containers"][0]["env"].append({"name": "X", "value": 1})
    pod["restartPolicy"] = "Always"
    pod["hostNetwork"] = True
    del made["metadata"]["name"]
    assert len(violations(made, JOB)) == 4


def test_every_file_of_the_volume_is_in_the_map_under_its_key() -> None:
    for made in (job(DEPLOYMENT), spark_application(DEPLOYMENT)):
        config_map, document = made["items"]
        spec = document["spec"]
        volumes = (spec if document["kind"] == "SparkApplication" else spec["template"]["spec"])["volumes"]
        items = volumes[0]["configMap"]["items"]
        assert {item["key"] for item in items} == config_map["data"].keys()
        assert {"clicks.py", "tools/__init__.py"} <= {item["path"] for item in items}
        assert volumes[0]["configMap"]["name"] == config_map["metadata"]["name"]
    program = config_map["data"]["submit.py"]
    compile(program, "submit.py", "exec")
    assert "/opt/ottla/pipeline/clicks.py" in program


def test_secrets_are_references_and_the_executors_get_none() -> None:
    spec = spark_application(DEPLOYMENT)["items"][1]["spec"]
    assert {
        "name": "DB_PASSWORD",
        "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}},
    } in spec["driver"]["env"]
    assert [one["name"] for one in spec["executor"]["env"]] == ["PYTHONPATH"]
    assert "--command-config" in spec["arguments"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": None}, "--image says which image to run"),
        ({"image": "a b"}, "--image says which image to run"),
        ({"name": "___"}, "has no letter or digit"),
        ({"namespace": "No_Such"}, "--namespace 'No_Such' is no name in Kubernetes"),
        ({"files": (Packed("a.bin", "", data=b"\xff"),)}, "a.bin is no text"),
        ({"files": (packed_text("a.py", "x" * 1_000_000),)}, "more than a ConfigMap takes"),
        ({"files": (packed_text("a/b.py", ""), packed_text("a__b.py", ""))}, "cannot tell apart"),
        ({"files": (packed_text("submit.py", ""),)}, "the name of the program"),
        ({"executors": 0}, "at least one"),
    ],
)
def test_what_kubernetes_would_refuse(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PackageError, match=said):
        spark_application(replace(DEPLOYMENT, **change))


def test_a_secret_by_mistake_is_refused_and_not_repeated() -> None:
    with pytest.raises(PackageError, match="is a secret by its name") as refused:
        deploy.variables([("DB_PASSWORD", "hunter2")])
    assert "hunter2" not in str(refused.value)
    with pytest.raises(PackageError, match="a secret's value is never given") as refused:
        deploy.secrets([("DB", "hunter2")])
    assert "hunter2" not in str(refused.value)
    with pytest.raises(PackageError, match="more than one line"):
        deploy.variables([("A", "x\nExecStart=/bin/evil")])
    with pytest.raises(PackageError, match="no name of an environment variable"):
        deploy.variables([("A B", "x")])


def test_kubernetes_reads_the_words_as_they_are_meant() -> None:
    """It reduces two dollars to one, and looks for a variable between `$(` and `)`."""
    given = replace(DEPLOYMENT, file="a$.py", checkpoint_dir="s3a://b/$(HOME)", variables={"P": "^a$$|$(x)"})
    documents = [job(given)["items"][1], spark_application(given)["items"][1]]
    (pod,) = documents[0]["spec"]["template"]["spec"]["containers"]
    assert pod["args"][0].endswith("/a$$.py")
    driver = documents[1]["spec"]["driver"]
    for arguments, variables in (
        (pod["args"], pod["env"]),
        (documents[1]["spec"]["arguments"], driver["env"]),
    ):
        assert "s3a://b/$$(HOME)" in arguments
        assert {"name": "P", "value": "^a$$$$|$$(x)"} in variables


def test_names_of_kubernetes() -> None:
    assert object_name("Clicks_per.minute") == "clicks-per-minute"
    assert len(object_name("x" * 200)) == deploy.MAX_NAME_CHARS


def test_systemd_reads_the_words_as_they_are_meant() -> None:
    odd = replace(DEPLOYMENT, file='/my "pipes"/50%/$HOME.py')
    text = unit(odd, "/venv/bin/python", "/my pipes", "/etc/ottla/c.env", "ada")
    assert '"/my \\"pipes\\"/50%%/$$HOME.py"' in text
    assert "\nUser=ada\n" in text
    assert "password" not in text.lower()
    with pytest.raises(PackageError, match="does not fit into one line"):
        unit(replace(odd, checkpoint_dir="x\nUser=root"), "/python", "/", "/c.env", None)


PIPELINE = """
from ottla.spark import pipeline, topic

@pipeline.stream(out=topic("o"))
def copy(a=topic("a", schema="n int")):
    return a
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.py"
    path.write_text(PIPELINE)
    return path


def test_the_command_writes_a_unit_that_systemd_accepts(pipeline: Path, tmp_path: Path) -> None:
    words = ["pipeline", "deploy", str(pipeline), "--to", "systemd", "--output", str(tmp_path)]
    words += ["--env", "LAKE=/data/$x", "--secret", "DB_PASSWORD=db/password"]
    assert main(words) == 0
    service, environment = tmp_path / "ottla-clicks.service", tmp_path / "ottla-clicks.env"
    assert stat.S_IMODE(environment.stat().st_mode) == 0o600
    assert 'LAKE="/data/\\$x"' in environment.read_text()
    assert "#DB_PASSWORD=\n" in environment.read_text()
    environment.write_text("DB_PASSWORD=hunter2\n")
    assert main(words) == 0
    assert environment.read_text() == "DB_PASSWORD=hunter2\n", "what the owner had filled in is gone"
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(service)],
            capture_output=True,
            text=True,
            check=False,
        )
        own = [line for line in done.stderr.splitlines() if service.name in line]
        assert own == []


@pytest.mark.parametrize(("to", "kind"), [("kubernetes", "job"), ("spark-operator", "sparkapplication")])
def test_the_command_writes_a_manifest(pipeline: Path, tmp_path: Path, to: str, kind: str) -> None:
    words = ["pipeline", "deploy", str(pipeline), "--to", to, "--output", str(tmp_path)]
    assert main(words) == 1, "without an image"
    assert main([*words, "--image", "spark-ottla:1", "-b", "broker:9092"]) == 0
    config_map, document = json.loads((tmp_path / f"clicks-{kind}.json").read_text())["items"]
    assert violations(document, JOB if kind == "job" else SPARK_APPLICATION) == []
    assert config_map["data"]["clicks.py"] == PIPELINE


class Talking:
    """A runner that says what it should not, and finds no room."""

    def __init__(self, spec: Any, log: Any) -> None:
        self._spec, self._log = spec, log

    def run(self) -> int:
        token = self._spec.secrets["TOKEN"]
        self._log.say(f"using {token}")
        print(f"error with {token}", file=sys.stderr)
        raise PermissionError(13, "Permission denied")


def test_what_others_start_names_no_secret_and_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ottla.spark.pipeline import submitted

    file = tmp_path / "p.py"
    file.write_text(
        "from ottla.spark import pipeline, secret, topic\n"
        "@pipeline.stream(out=topic('out'))\n"
        "def copy(rows=topic('in', schema='n int'), token=secret('TOKEN')):\n    return rows\n"
    )
    monkeypatch.setenv("OTTLA_SECRET_TOKEN", "hunter2-unlikely")
    monkeypatch.setattr(submitted, "Runner", Talking)
    monkeypatch.setattr(submitted, "hold", lambda _: None)
    for name in ("stdout", "stderr"):  # to be put back
        monkeypatch.setattr(sys, name, getattr(sys, name))
    state = str(tmp_path / "state")
    assert submitted.main([str(file), "-b", "h:1", "--state-dir", state]) == 1
    found = capsys.readouterr()
    assert "using ***" in found.out
    assert found.err == f"error with ***\nottla: {state}/p cannot be written: Permission denied\n"


def test_the_program_of_all_three_knows_its_arguments() -> None:
    from ottla.spark.pipeline.submitted import parser

    container = job(DEPLOYMENT)["items"][1]["spec"]["template"]["spec"]["containers"][0]
    args = parser().parse_args(container["args"])
    assert (args.file, args.name, args.master) == (
        "/opt/ottla/pipeline/clicks.py",
        "Clicks_per.minute",
        "local[*]",
    )
    args = parser().parse_args(["x.py", *spark_application(DEPLOYMENT)["items"][1]["spec"]["arguments"]])
    assert (args.master, args.command_config) == (None, "/etc/ottla/client.properties")
