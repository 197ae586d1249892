"""One trace through a whole stack."""

import pytest
from collector import collecting

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVICES = {
    "VerifyKey": "fastrun-auth",
    "attempt": "fastrun-edge",
    "chat": "fastrun-edge",
    "decode": "fastrun-worker",
    "generation": "fastrun-worker",
    "prefill": "fastrun-worker",
    "queue": "fastrun-scheduler",
}
PARENTS = {
    "VerifyKey": "chat",
    "queue": "chat",
    "attempt": "chat",
    "generation": "attempt",
    "prefill": "generation",
    "decode": "generation",
}


def named(spans):
    """Those of the client's trace."""
    return {each.name: each for each in spans if each.trace_id == TRACE}


def test_one_trace_through_all_services(machine, scripted):
    """A client's trace goes on in every service, with queue, prefill and decode, in one tree."""
    with collecting() as collector:
        up = machine.up(
            *("--ephemeral", "--json", *scripted),
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
            OTEL_BSP_SCHEDULE_DELAY="50",
            FASTRUN_EDGE_KEY_FRESH_S="0",  # or nobody would ask about a key that is known
        )
        with up.running():
            up.client().chat.completions.create(
                model=up.ready["model"],
                messages=[{"role": "user", "content": "Swordfish"}],
                max_tokens=5,
                extra_headers={"traceparent": f"00-{TRACE}-{SPAN}-01"},
            )
            told = collector.until(lambda spans: set(named(spans)) >= set(SERVICES))
    spans = named(told)
    assert {name: each.service for name, each in spans.items()} == SERVICES
    assert spans["chat"].parent_id == SPAN
    by_id = {each.span_id: name for name, each in spans.items()}
    assert {name: by_id.get(each.parent_id) for name, each in spans.items()} == {
        **PARENTS,
        "chat": None,
    }
    # About: each span is told by the clocks as they are when it ends, and in steps of 256 ns.
    prefilled_ns = spans["decode"].began_ns
    assert spans["prefill"].ended_ns == pytest.approx(prefilled_ns, abs=50_000_000, rel=0)
    assert not any(each.failed for each in spans.values())
    assert "Swordfish" not in repr(told)
