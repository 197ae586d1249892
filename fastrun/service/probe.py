"""Whether a service is ready, asked at its admin port: the health check of a container.

``python -m fastrun.service.probe 127.0.0.1:9101``. It runs every few seconds in each container, so
it imports little: all of the `fastrun` command would take four times as much of a core.
"""

import http.client
import sys
from contextlib import closing

TIMEOUT_S = 2.0


class ProbeError(Exception):
    """The service is not ready; the message is one sentence that says why."""


def probe(address: str, path: str = "/readyz") -> str:
    """Return what a service that is ready answers.

    Args:
        address: host:port of its admin port.
        path: what to ask for.

    Raises:
        ProbeError: it is not ready, or does not answer within 2 s.
    """
    try:
        with closing(http.client.HTTPConnection(address, timeout=TIMEOUT_S)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            answer = response.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        # The last: a text that cannot be a host's name, or a path.
        raise ProbeError(f"nothing answers at {address}: {error}") from error
    if response.status != http.HTTPStatus.OK:
        raise ProbeError(f"{address} is not ready: {answer}")
    return answer


if __name__ == "__main__":
    try:
        probe(*sys.argv[1:])
    except ProbeError as error:
        sys.exit(str(error))
