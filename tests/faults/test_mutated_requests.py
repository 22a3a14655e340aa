"""Every API and version that is served, with requests that are almost right.

A valid frame is cut, stretched, and has bytes flipped or replaced, from a fixed seed. Whatever comes of it is an
answer or a closed connection: the broker lives, its log shows no traceback, and others are served on.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import receive_frame
from tests.interop.scripts.entities import known_versions
from tests.interop.scripts.script import api_ranges
from tests.support.control import ControlClient
from tests.support.raw_client import API_VERSIONS, FETCH, RawClient, half_close
from tests.support.specimens import specimen

MUTANTS = 12
HEADER_BYTES = 4 + 8  # size, key, version and correlation id stay, so that the mutant reaches its handler
INTERESTING = (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 5)
QUESTION = b"last"
HELLO = struct.pack(">ihh4sh", 10, API_VERSIONS, 0, QUESTION, -1)


def mutants(frame: bytes, chance: random.Random) -> Iterator[bytes]:
    """Frames with a right length prefix and a wrong body."""
    for _ in range(MUTANTS):
        body = bytearray(frame[4:])
        for _ in range(chance.choice((1, 1, 2, 5))):
            _mutate(body, chance)
        yield struct.pack(">i", len(body)) + body


def _mutate(body: bytearray, chance: random.Random) -> None:
    first = HEADER_BYTES - 4
    place = chance.randrange(first, len(body) + 1)
    kind = chance.randrange(5)
    if kind == 0 and place < len(body):
        body[place] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del body[place:]
    elif kind == 2:
        body[place:place] = chance.randbytes(chance.randrange(1, 9))
    elif kind == 3:
        del body[place : place + chance.randrange(1, 5)]
    else:
        wanted = chance.choice(INTERESTING)
        body[place : place + len(wanted)] = wanted


def survives(client: RawClient, frame: bytes, in_a_hurry: bool) -> bool:
    """Send it with a question behind it: True when that is answered or the connection closed."""
    try:
        client.send(frame + HELLO)
        if in_a_hurry:  # the client is gone before the handler is done
            half_close(client.sock)
        while receive_frame(client.sock)[:4] != QUESTION:
            pass
        return True
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("listener", ["broker", "controller"])
@pytest.mark.parametrize("part", range(4))
def test_almost_right(node: OttlaNode, control: ControlClient, listener: str, part: int) -> None:
    topic = f"mutants-{listener}-{part}"
    with RawClient(node) as client:
        topic_id = client.create_topic_with_id(topic)
    port = node.port if listener == "broker" else node.controller_port
    tried = 0
    for key, (low, high) in sorted(api_ranges(node)[listener].items()):
        if key % 4 != part:
            continue
        for version in set(range(low, high + 1)) & set(known_versions(key)):
            chance = random.Random(f"{listener} {key} {version}")
            for mutant in mutants(specimen(key, version, topic, topic_id), chance):
                # A fetch that became a long poll may wait for weeks.
                in_a_hurry = key == FETCH or chance.random() < 0.2
                with RawClient(node, port=port) as client:
                    assert survives(client, mutant, in_a_hurry), (key, version, mutant.hex())
                tried += 1
        control.still_works(1)
    assert tried > 0
    assert "Traceback" not in node.log_text()
