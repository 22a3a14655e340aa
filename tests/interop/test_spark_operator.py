"""The SparkApplication that `ottla pipeline deploy` writes, held against the Spark operator's own definition of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.unit.spark.cluster.test_deploy import DEPLOYMENT

from ottla.spark.cluster.deploy import spark_application

pytestmark = pytest.mark.interop

OPERATOR = "github.com/kubeflow/spark-operator/v2@v2.4.0"
DEFINITION = "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"
DOWNLOAD_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def definition() -> dict[str, Any]:
    """The schema of version v1beta2."""
    done = subprocess.run(
        ["go", "mod", "download", "-json", OPERATOR],
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=True,
    )
    document = yaml.safe_load((Path(json.loads(done.stdout)["Dir"]) / DEFINITION).read_text())
    (version,) = [one for one in document["spec"]["versions"] if one["name"] == "v1beta2"]
    found: dict[str, Any] = strict(version["schema"]["openAPIV3Schema"])
    found["properties"]["metadata"] = {"type": "object"}
    return found


def strict(schema: Any) -> Any:
    """With what Kubernetes would drop without a word refused: fields that are not in the definition."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made["additionalProperties"] = False
    return made


def test_the_operator_has_such_applications(definition: dict[str, Any]) -> None:
    document = spark_application(DEPLOYMENT)["items"][1]
    jsonschema.validate(document, definition)


@pytest.mark.parametrize(
    ("path", "value"), [(("type",), "Ruby"), (("driver", "cores"), "one"), (("executor", "count"), 2)]
)
def test_what_is_wrong_is_found(definition: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    document = spark_application(DEPLOYMENT)["items"][1]
    place = document["spec"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, definition)
