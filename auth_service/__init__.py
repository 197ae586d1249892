"""Who is this key, may it call, and what did it use."""

import fastrun.service  # noqa: F401 - sets what gRPC reads as it is loaded
