"""Spans on their way to a collector."""

import asyncio
import threading

from fastrun.service import otlp


class Hanging:
    """A processor of spans whose collector does not answer."""

    def __init__(self):
        self.answers = threading.Event()

    def shutdown(self):
        self.answers.wait()


def test_a_collector_that_hangs_holds_up_no_end(monkeypatch):
    """Nor does it matter when it answers after all, with the event loop gone."""
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(otlp, "CLOSE_LIMIT_S", 0.01)
    tracer = otlp.OtlpTracer("http://127.0.0.1:9", "edge", share=1)
    tracer._processor.shutdown()
    tracer._processor = hanging = Hanging()
    asyncio.run(tracer.close())
    (shutting_down,) = (each for each in threading.enumerate() if each.name == "otlp-shutdown")
    hanging.answers.set()
    shutting_down.join()
    assert failed == []
