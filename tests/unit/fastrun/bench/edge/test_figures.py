"""What runs come to."""

import msgspec
import pytest

from fastrun.bench.edge.figures import figures, ratio
from fastrun.bench.edge.load import Process, Run, Times
from fastrun.bench.edge.scenarios import Scenario


def a_run(ran_s=1.0, *, processes=None, **fields):
    return Run(
        **{
            "seconds": 2.0,
            "requests": 10,
            "chunks": 1100,
            "tokens": 1000,
            "errors": 0,
            "refused": 0,
            "cut": 0,
            "own_s": 0.1,
            "latency_us": Times(100, 200, 300),
            "first_token_us": Times(10, 20, 30),
            "gap_us": None,
            "delay_us": Times(1, 2, 3),
            "processes": processes or {"measured": Process(ran_s, (1024, 2048))},
            **fields,
        }
    )


def of(*runs, streamed=True, scenario="st64", target="fastrun"):
    asked = Scenario(name=scenario, streamed=streamed, connections=1, tokens=1)
    return figures(asked, target, runs, load_average=0.25)


def test_a_token_costs_what_its_share_of_the_window_is():
    """A second of CPU time for 1,000 tokens in a window of 2 s is 1,000 us each, on half a core."""
    figures = of(a_run(1.0))
    assert (figures.unit, figures.cpu_us, figures.per_s, figures.busy) == ("token", 1000, 500, 0.5)
    assert (figures.begin_mib, figures.end_mib, figures.load_average) == (1.0, 2.0, 0.25)


def test_requests_count_where_nothing_is_streamed():
    """Answers that are not streamed show no tokens: the unit is a request."""
    figures = of(a_run(1.0, tokens=0, first_token_us=None, delay_us=None), streamed=False)
    assert (figures.unit, figures.cpu_us, figures.per_s) == ("request", 100_000, 5)
    assert figures.first_token_p50_us is None
    assert figures.latency_p99_us == 200


def test_each_figure_is_a_median():
    """One run that something else disturbed changes nothing."""
    disturbed = a_run(50.0, delay_us=Times(9000, 90000, 900_000), tokens=3)
    figures = of(a_run(1.0), disturbed, a_run(1.2))
    assert (figures.runs, figures.cpu_us) == (3, 1200)
    assert (figures.delay_p50_us, figures.delay_p99_us) == (1, 2)


def test_times_are_of_the_runs_that_have_them():
    """A window in which no answer ended has no latency, and takes nothing from the others."""
    assert of(a_run(latency_us=None), a_run()).latency_p50_us == 100
    assert of(a_run(latency_us=None)).latency_p50_us is None


def test_failures_are_summed():
    """Nothing that went wrong vanishes in a median."""
    assert of(a_run(), a_run(errors=1, cut=2), a_run(refused=4)).failures == 7


def test_nothing_at_all():
    """A window without a token divides by nothing."""
    assert of(a_run(tokens=0)).cpu_us == 1_000_000


def test_the_worker_is_counted_by_itself():
    """The stack's worker has a cost for each token; a peer has none."""
    processes = {"measured": Process(1.0, (0, 0)), "worker": Process(0.5, (0, 0))}
    assert of(a_run(processes=processes)).worker_us == 500
    assert of(a_run()).worker_us is None


@pytest.mark.parametrize(("base", "expected"), [("fastrun", 0.5), ("smg", 1.0), ("nginx", None)])
def test_ratio(base, expected):
    """Costs are compared under the same load, with whatever was measured."""
    edge, peer = of(a_run(2.0)), of(a_run(1.0), target="smg")
    other = of(a_run(9.0), scenario="ns64")
    assert ratio(peer, [other, edge, peer], base) == expected


def test_figures_are_json():
    """Programs get what people get."""
    made = of(a_run())
    assert msgspec.json.decode(msgspec.json.encode(made), type=type(made)) == made
