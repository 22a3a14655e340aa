"""What a run was asked for: given to its process, kept for the next start, and what of it is secret.

Rules: what is secret is handed over by standard input and kept nowhere; what is kept says only that there was
something.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ottla.client.config import SECRET_KEYS
from ottla.spark.cluster.connect import hidden_in, secrets_of, without_token
from ottla.spark.connection import PREFIX
from ottla.spark.pipeline.discreet import DiscreetStream, hiding
from ottla.spark.pipeline.given import Given, Secrets, Source
from ottla.spark.pipeline.replay import Replay
from ottla.spark.secret_settings import secret_settings

MAX_SPEC_BYTES = 1 << 20


@dataclass(frozen=True)
class Spec:
    """What to run, as `ottla pipeline run` was asked to."""

    file: str
    name: str
    bootstrap: str
    state_dir: str
    log: str
    spark_log: str
    master: str | None = None
    remote: str | None = field(default=None, repr=False)  # may have a token in it
    checkpoint_dir: str | None = None
    available_now: bool = False
    watched: bool = False
    create_topics: bool = False
    give_up_after_s: float | None = None  # for ever
    replay: Replay | None = None
    from_savepoint: str | None = None
    metrics: str | None = None
    submitted: bool = False  # by spark-submit, which has chosen the master and the settings
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def given(self) -> Given:
        """What the one who started this has found."""
        return Given((Source("--param", self.params),), Secrets(known=self.secrets))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Spec:
        """From what `to_json` or `to_keep` made; TypeError if it is something else."""
        known = {entry.name for entry in fields(cls)}
        given = {name: value for name, value in document.items() if name in known}
        if given.get("replay") is not None:
            given["replay"] = Replay(**given["replay"])
        return cls(**given)

    def to_json(self) -> str:
        """In one line."""
        return json.dumps(asdict(self))

    @property
    def spark(self) -> str:
        """The Spark to use, as it is shown."""
        if self.remote is not None:
            return without_token(self.remote)
        return self.master or ("spark-submit" if self.submitted else "local[*]")

    @property
    def hidden(self) -> list[str]:
        """The texts that are to be read nowhere: whoever has them can do what this run can."""
        return [
            *self.secrets.values(),
            *hidden_in(self.remote or ""),
            *(text for texts in secret_settings(self.conf).values() for text in texts),
            *(self.options[key] for key in self._secret_options()),
        ]

    def _secret_options(self) -> list[str]:
        return [key for key in self.options if key.removeprefix(PREFIX) in SECRET_KEYS]

    def to_keep(self) -> dict[str, Any]:
        """For the next start: what is secret is kept nowhere, only that there was something."""
        options, conf = self._secret_options(), secret_settings(self.conf)
        return {
            **asdict(self),
            "from_savepoint": None,  # the next start has a checkpoint
            "remote": None if self.remote is None else without_token(self.remote),
            "conf": {key: value for key, value in self.conf.items() if key not in conf},
            "options": {key: value for key, value in self.options.items() if key not in options},
            "secrets": {},
            "not_kept": options,
            "conf_not_kept": list(conf),
            "remote_not_kept": list(secrets_of(self.remote or "")),
        }


def read_spec(fd: int) -> Spec:
    """The first line of what whoever started this has to say; byte by byte, for the rest is read by others."""
    line = bytearray()
    while len(line) < MAX_SPEC_BYTES and (byte := os.read(fd, 1)) not in (b"", b"\n"):
        line += byte
    return Spec.of(json.loads(line))


def secret_texts(spec: Spec) -> list[str]:
    """What is taken out of all that this process says. PySpark names the address of its environment in complaints."""
    return [*spec.hidden, *hidden_in(os.environ.get("SPARK_REMOTE", ""))]


def quieted(spec: Spec) -> Callable[[str], str]:
    """What takes this run's secrets out of a text; from now on this process's own streams are without them."""
    secret = secret_texts(spec)
    hide = hiding(secret)
    if secret:
        sys.stderr, sys.stdout = DiscreetStream(sys.stderr, hide), DiscreetStream(sys.stdout, hide)
    return hide
