"""Which worker, now or queued or refused."""

import fastrun.service  # noqa: F401 - sets what gRPC reads as it is loaded
