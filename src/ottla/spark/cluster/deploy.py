"""What keeps a pipeline running: a systemd unit, a Kubernetes Job, a SparkApplication for the Spark operator.

All three run the same program (ottla.spark.pipeline.submitted), which ends cleanly on SIGTERM and goes on from its
checkpoint. Parameters are environment variables. A secret is never in what is written here: the unit reads a file that
only its owner reads, a pod gets it from a Secret of its namespace.

Kubernetes' documents are written as JSON, which kubectl takes as it takes YAML, and which says exactly what it says.
The pipeline's files travel in a ConfigMap; Ottla has to be in the image.

Rules: pure, text and documents from a `Deployment`; names and values are checked before anything is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ottla.spark.cluster.environment import PackageError, Packed

TARGETS = ("systemd", "kubernetes", "spark-operator")
PROGRAM = "ottla.spark.pipeline.submitted"
# Kubernetes takes a ConfigMap of 1 MiB, names and all.
MAX_CONFIG_MAP_BYTES = 900_000
MAX_NAME_CHARS = 52  # a Job's pods add eleven to its 63
STOP_TIMEOUT_S = 120
CLIENT_FILE = "client.properties"
_FILES, _CLIENT = PurePosixPath("/opt/ottla/pipeline"), PurePosixPath("/etc/ottla")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?)/([A-Za-z0-9._-]+)")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LOOKS_SECRET = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY", re.I)
_OWN_VARIABLE = "OTTLA_BOOTSTRAP_SERVER"


@dataclass(frozen=True)
class Deployment:
    """A pipeline and where it is to run."""

    name: str
    file: str  # on this machine for systemd, its name among `files` elsewhere
    bootstrap: str
    checkpoint_dir: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # variable: Secret and its key
    client_secret: str | None = None
    image: str | None = None
    namespace: str | None = None
    executors: int = 2
    spark_version: str = ""
    files: tuple[Packed, ...] = ()


def variables(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Parameters, checked; what is a secret by its name is refused without saying its value."""
    for name, value in given:
        if not _VARIABLE.fullmatch(name):
            raise PackageError(f"--env {name!r} is no name of an environment variable")
        if _LOOKS_SECRET.search(name):
            raise PackageError(
                f"--env {name} is a secret by its name, and would be in the file: --secret {name}=SECRET/KEY"
            )
        if not value.isprintable():
            raise PackageError(f"--env {name}: its value is more than one line of text")
    return dict(given)


def secrets(given: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """For each variable the Secret and the key in it."""
    found: dict[str, tuple[str, str]] = {}
    for name, place in given:
        parts = _SECRET.fullmatch(place)
        if not _VARIABLE.fullmatch(name) or parts is None:
            # The value may be the secret itself, by mistake.
            raise PackageError(
                f"--secret {name}: VARIABLE=SECRET/KEY says where it is; a secret's value is never given"
            )
        found[name] = (parts[1], parts[3])
    return found


# -- systemd ------------------------------------------------------------------------------------------------


def unit(deployment: Deployment, python: str, working_directory: str, env_file: str, user: str | None) -> str:
    """The unit. What differs from machine to machine, and what is secret, is in the file of its environment."""
    for text in (
        deployment.file,
        deployment.bootstrap,
        deployment.checkpoint_dir or "",
        working_directory,
        env_file,
    ):
        if not text.isprintable():
            raise PackageError(f"{text!r} does not fit into one line of a unit")
    words = [python, "-m", PROGRAM, deployment.file, "--name", deployment.name, "--master", "local[*]"]
    if deployment.checkpoint_dir:
        words += ["--checkpoint-dir", deployment.checkpoint_dir]
    return "\n".join(
        [
            "[Unit]",
            f"Description=Ottla pipeline {_specifiers(deployment.name)}",
            "Wants=network-online.target",
            "After=network-online.target",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            *([f"User={user}"] if user else []),
            f"WorkingDirectory={_specifiers(working_directory)}",
            f"EnvironmentFile={_specifiers(env_file)}",
            f"StateDirectory=ottla/{deployment.name}",
            f"Environment=OTTLA_STATE_DIR=%S/ottla/{deployment.name}",
            f"ExecStart={' '.join(map(_word, words))}",
            "Restart=on-failure",
            "RestartSec=10",
            "# The pipeline ends its micro-batches and Spark's processes itself.",
            "KillMode=mixed",
            f"TimeoutStopSec={STOP_TIMEOUT_S}",
            "NoNewPrivileges=true",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def env_file(deployment: Deployment) -> str:
    """The unit's environment: parameters, and the secrets' names for their owner to fill in."""
    lines = [
        "# The environment of the pipeline. Secrets belong here, too: keep it readable for its owner only."
    ]
    given = {_OWN_VARIABLE: deployment.bootstrap, **deployment.variables}
    lines += [f"{name}={_env_value(value)}" for name, value in given.items()]
    lines += [
        "# Settings of the client (security.protocol and the rest), in a file:",
        "#OTTLA_CONFIG=/etc/ottla/client.properties",
    ]
    lines += [f"#{name}=" for name in deployment.secrets]
    return "\n".join(lines) + "\n"


def _word(word: str) -> str:
    """One word of ExecStart: systemd takes quotes, backslashes, specifiers and variables apart."""
    escaped = _specifiers(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./*\[\]-]+", escaped) else f'"{escaped}"'


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _env_value(value: str) -> str:
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'


# -- Kubernetes ---------------------------------------------------------------------------------------------


def job(deployment: Deployment) -> dict[str, Any]:
    """A Job with one pod, in which driver and executors are one process, and the ConfigMap of its files."""
    name = object_name(deployment.name)
    container = {
        "name": "pipeline",
        "image": _image(deployment),
        "command": ["python3", "-m", PROGRAM],
        "args": [_literal(f"{_FILES}/{deployment.file}"), "--master", "local[*]", *_arguments(deployment)],
        "env": [*_environment(deployment), {"name": "PYTHONPATH", "value": str(_FILES)}],
        "volumeMounts": _mounts(deployment, client=True),
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    pod = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": STOP_TIMEOUT_S,
        "containers": [container],
        "volumes": _volumes(deployment, name),
    }
    labels = _labels(name)
    made = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(deployment, name),
        "spec": {"backoffLimit": 1000, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    return _together(_config_map(deployment, name), made)


def spark_application(deployment: Deployment) -> dict[str, Any]:
    """A SparkApplication (sparkoperator.k8s.io/v1beta2) with executors of its own, and the ConfigMap of its files."""
    name = object_name(deployment.name)
    image = _image(deployment)
    if deployment.executors < 1:
        raise PackageError(f"--executors {deployment.executors}: at least one")
    path = {"name": "PYTHONPATH", "value": str(_FILES)}
    # The operator starts the program by its path: a module's file would be another one in each image.
    main = Packed("submit.py", "", data=_main(deployment).encode())
    deployment = _with_file(deployment, main)
    made = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": _metadata(deployment, name),
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "image": image,
            "sparkVersion": deployment.spark_version,
            "mainApplicationFile": f"local://{_FILES}/submit.py",
            "arguments": _arguments(deployment),
            "restartPolicy": {"type": "OnFailure", "onFailureRetries": 1000, "onFailureRetryInterval": 10},
            "volumes": _volumes(deployment, name),
            "driver": {
                "cores": 1,
                "memory": "1g",
                "serviceAccount": "spark",
                "env": [*_environment(deployment), path],
                "labels": _labels(name),
                "volumeMounts": _mounts(deployment, client=True),
            },
            "executor": {
                "instances": deployment.executors,
                "cores": 1,
                "memory": "2g",
                "env": [path],
                "labels": _labels(name),
                "volumeMounts": _mounts(deployment, client=False),
            },
        },
    }
    return _together(_config_map(deployment, name), made)


def object_name(name: str) -> str:
    """A pipeline's name as one of Kubernetes': lower case, digits and '-'."""
    made = re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_NAME_CHARS].strip("-")
    if not made:
        raise PackageError(f"{name!r} has no letter or digit that a name in Kubernetes may have; see --name")
    return made


def _main(deployment: Deployment) -> str:
    return (
        f"import sys\n\nfrom {PROGRAM} import main\n\n"
        f'if __name__ == "__main__":\n    sys.exit(main([{str(_FILES / deployment.file)!r}, *sys.argv[1:]]))\n'
    )


def _with_file(deployment: Deployment, one: Packed) -> Deployment:
    from dataclasses import replace

    if any(other.name == one.name for other in deployment.files):
        raise PackageError(
            f"the pipeline has a file {one.name}, which is the name of the program that runs it"
        )
    return replace(deployment, files=(*deployment.files, one))


def _image(deployment: Deployment) -> str:
    if not deployment.image or any(character.isspace() for character in deployment.image):
        raise PackageError(
            "--image says which image to run: one with Spark, Java, and Ottla with its extra `spark`"
        )
    return deployment.image


def _arguments(deployment: Deployment) -> list[str]:
    words = ["--name", deployment.name]
    if deployment.checkpoint_dir:
        words += ["--checkpoint-dir", deployment.checkpoint_dir]
    if deployment.client_secret:
        words += ["--command-config", f"{_CLIENT}/{CLIENT_FILE}"]
    return [_literal(word) for word in words]


def _literal(text: str) -> str:
    """Kubernetes puts variables in the place of `$(NAME)`, in arguments and in variables, and `$` in that of `$$`."""
    return text.replace("$", "$$")


def _environment(deployment: Deployment) -> list[dict[str, Any]]:
    plain = {_OWN_VARIABLE: deployment.bootstrap, **deployment.variables}
    return [{"name": name, "value": _literal(value)} for name, value in plain.items()] + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, (secret, key) in deployment.secrets.items()
    ]


def _metadata(deployment: Deployment, name: str) -> dict[str, Any]:
    for what, value in (("--namespace", deployment.namespace), ("--client-secret", deployment.client_secret)):
        if value is not None and not _OBJECT.fullmatch(value):
            raise PackageError(f"{what} {value!r} is no name in Kubernetes: lower case, digits and '-'")
    made: dict[str, Any] = {"name": name, "labels": _labels(name)}
    return {**made, "namespace": deployment.namespace} if deployment.namespace else made


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "ottla"}


def _config_map(deployment: Deployment, name: str) -> dict[str, Any]:
    """Its keys have no '/': the volume says which file each becomes."""
    texts: dict[str, str] = {}
    for one in deployment.files:
        try:
            texts[_key(one.name)] = one.content().decode()
        except UnicodeDecodeError:
            raise PackageError(
                f"{one.name} is no text, and does not go into a ConfigMap: put it into the image, or use `package`"
            ) from None
    if len(texts) != len(deployment.files):
        raise PackageError("two of the pipeline's files have names that Kubernetes cannot tell apart")
    size = sum(len(key) + len(text.encode()) for key, text in texts.items())
    if size > MAX_CONFIG_MAP_BYTES:
        raise PackageError(
            f"the pipeline's files are {size:,} bytes, more than a ConfigMap takes: use `package`"
        )
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(deployment, name), "data": texts}


def _key(file: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "__", file)


def _volumes(deployment: Deployment, name: str) -> list[dict[str, Any]]:
    items = [{"key": _key(one.name), "path": one.name} for one in deployment.files]
    volumes: list[dict[str, Any]] = [{"name": "files", "configMap": {"name": name, "items": items}}]
    if deployment.client_secret:
        volumes.append({"name": "client", "secret": {"secretName": deployment.client_secret}})
    return volumes


def _mounts(deployment: Deployment, *, client: bool) -> list[dict[str, Any]]:
    mounts = [{"name": "files", "mountPath": os.fspath(_FILES), "readOnly": True}]
    if client and deployment.client_secret:
        mounts.append({"name": "client", "mountPath": os.fspath(_CLIENT), "readOnly": True})
    return mounts


def _together(*documents: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(documents)}
