"""A TCP port for a server of ours."""

import secrets
import socket

# Below the range from which systems choose the ports of outgoing connections, so that a server which is down for a
# moment still finds its port free when it comes back.
RANGE = range(20_000, 32_000)


def free_port() -> int:
    """Return a port that nobody uses."""
    while True:
        port = secrets.choice(RANGE)  # not `random`, which hypothesis seeds alike in every process
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
