"""Clients for Spark's processes: one a process for each set of settings, kept between tasks.

Spark reuses its Python workers and forks them: a client is found again by its settings and belongs to the process
that made it. A client left by the parent of a fork is forgotten without touching its connections.
"""

import atexit
import gc
import os
import ssl
from typing import Any

from ottla.client.config import ClientConfig
from ottla.client.inline import InlineClient
from ottla.spark.kafka_options import KafkaOptions, Tls

CLIENT_ID = "ottla-spark"
MAX_CLIENTS = 8

_Key = tuple[int, tuple[tuple[str, str], ...], Tls | None]
_clients: dict[_Key, InlineClient] = {}


def connect(kafka: KafkaOptions, **more: Any) -> InlineClient:
    """A client of the caller's own, started; the caller closes it."""
    settings: dict[str, Any] = {"client.id": CLIENT_ID, **dict(kafka.client), **more}
    context = None if kafka.tls is None else ssl_context(kafka.tls)
    return InlineClient(settings, ssl_context=context).start()


def shared_client(kafka: KafkaOptions) -> InlineClient:
    """The client that this process keeps for these settings; started, never closed by the caller."""
    key: _Key = (os.getpid(), kafka.client, kafka.tls)
    client = _clients.get(key)
    if client is None:
        _make_room()
        client = _clients[key] = connect(kafka, **_patient(kafka))
        # Spark collects garbage after every task: 25 ms to walk all that is imported, which stays anyway.
        gc.freeze()
    return client


def forget(client: InlineClient) -> None:
    """Close a shared client on whose connections something is still under way; the next one starts anew."""
    for key in [key for key, held in _clients.items() if held is client]:
        del _clients[key]
    client.close()


def _patient(kafka: KafkaOptions) -> dict[str, Any]:
    """A task that starts while a broker restarts waits for it as long as one that is connected already does."""
    given = dict(kafka.client)
    if "bootstrap.timeout.ms" in given:
        return {}
    return {"bootstrap.timeout.ms": ClientConfig.of(given).default_api_timeout_ms}


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """TLS from PEM files."""
    context = ssl.create_default_context(cafile=tls.ca)
    if not tls.check_names:
        context.check_hostname = False
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key, tls.password)
    return context


def _make_room() -> None:
    """Close what a parent left here, and the oldest if there are too many."""
    pid = os.getpid()
    stale = [key for key in _clients if key[0] != pid]
    own = [key for key in _clients if key[0] == pid]
    for key in [*stale, *own[: max(0, len(own) - MAX_CLIENTS + 1)]]:
        _clients.pop(key).close()


def _close_all() -> None:
    for client in _clients.values():
        client.close()
    _clients.clear()


atexit.register(_close_all)
