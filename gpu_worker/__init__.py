"""How a model speaks: template, tokens, text; and the engines that run it."""

import fastrun.service  # noqa: F401 - sets what gRPC reads as it is loaded
