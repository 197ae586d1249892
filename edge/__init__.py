"""The HTTP edge: speaks the OpenAI API to clients and gRPC to everything else."""
