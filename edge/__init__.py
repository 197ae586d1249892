"""The HTTP edge: speaks the OpenAI API to clients and gRPC to everything else."""

import fastrun.service  # noqa: F401 - sets what gRPC reads as it is loaded
