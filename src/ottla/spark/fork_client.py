"""What a Python worker of Spark is on the outside, where a fork server (ottla.spark.fork_server) does the work.

    python -I -S fork_client.py ADDRESS PYTHON -m MODULE ARGUMENTS...

Hands its files, arguments and environment over and waits for the fork to end, with its code; without a server it
becomes the Python that it was to be. It is started for each worker, so it imports next to nothing: no package, and of
the standard library what is there anyway or small.
"""

import _socket
import json
import os
import signal
import struct
import sys


def main() -> int:
    address, python, *arguments = sys.argv[1:]
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        server.connect(address)
        order = {"argv": arguments, "environ": dict(os.environ), "cwd": os.getcwd()}
        text = json.dumps(order).encode()
        files = struct.pack("3i", 0, 1, 2)
        server.sendmsg([struct.pack("!I", len(text))], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
        server.sendall(text)
        pid = _number(server)
    except (OSError, ValueError):
        pid = None
    if pid is None:
        server.close()
        os.execv(python, [python, *arguments])
    signal.signal(signal.SIGTERM, lambda number, _: _kill(pid, number))
    # Both ends of the worker's pipes are the fork's now: a copy here would keep them open when it has closed its own.
    for number in (0, 1):
        os.close(number)
    try:
        code = _number(server)
    except OSError:
        code = None
    if code is None:  # the server is gone, and would not see this process end
        _kill(pid, signal.SIGKILL)
        return 1
    return code if code >= 0 else 128 - code  # ended by a signal: as a shell says it


def _number(server: _socket.socket) -> int | None:
    data = b""
    while len(data) < 4:
        part = server.recv(4 - len(data))
        if not part:
            return None
        data += part
    return int(struct.unpack("!i", data)[0])


def _kill(pid: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib takes longer to import than all else here
        os.kill(pid, number)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
