"""What the asyncio driver does with its sockets."""

import asyncio
import socket

import pytest

from ottla.client.config import ClientConfig
from ottla.client.network import NetworkCore
from ottla.net.aio import Driver, _Link


def test_a_connection_to_itself_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a port nobody listens on, TCP may connect a caller with itself; the broker could not come back there."""

    async def run() -> list[str]:
        driver = Driver(NetworkCore(ClientConfig()))
        told: list[str] = []
        monkeypatch.setattr(driver, "_on_connected", lambda *_: told.append("connected"))
        monkeypatch.setattr(driver, "_on_disconnected", lambda link, reason: told.append(reason))
        with socket.socket() as ours:
            ours.bind(("127.0.0.1", 0))
            ours.connect(ours.getsockname())
            ours.setblocking(False)
            await asyncio.get_running_loop().create_connection(lambda: _Link(driver, 0), sock=ours)
            while not told:
                await asyncio.sleep(0)
        await driver.close()
        return told

    assert asyncio.run(asyncio.wait_for(run(), 30)) == ["connection refused"]
