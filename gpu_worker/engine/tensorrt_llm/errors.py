"""Why this engine cannot be started."""


class StartupError(Exception):
    """TensorRT-LLM or a model cannot be used; the message says why."""
