"""What clients do while an edge is measured."""

import json

from fastrun.bench.edge.scenarios import ALL, NAMES, by_pace, chosen
from gpu_worker.engine.scripted import COMMAND


def test_all_or_those_that_are_named():
    """Without names all are run, in their own order."""
    assert [each.name for each in chosen([], seconds=None)] == list(NAMES)
    some = list(chosen(["ns1", "pace64"], seconds=0.5))
    assert [(each.name, each.window_s) for each in some] == [("pace64", 0.5), ("ns1", 0.5)]


def test_one_stack_for_each_pace():
    """What an engine can do at one pace runs on one stack, and nothing is lost."""
    groups = list(by_pace(ALL))
    assert [pace for pace, _ in groups] == [50, 20, 0]
    assert sorted(each.name for _, group in groups for each in group) == sorted(NAMES)
    assert all(each.tokens_per_s == pace for pace, group in groups for each in group)


def test_streams_that_stay_open():
    """No stream of open1000 ends before its window does."""
    (scenario,) = chosen(["open1000"], seconds=None)
    whole_s = scenario.ramp_s + scenario.warm_s + scenario.window_s
    assert scenario.tokens > scenario.tokens_per_s * whole_s


def test_bodies_ask_for_stamps():
    """The prompt holds the command by which tokens say when they were made."""
    for scenario in ALL:
        body = json.loads(scenario.body("m"))
        assert (body["model"], body.get("stream", False)) == ("m", scenario.streamed)
        assert body["max_tokens"] == scenario.tokens
        prompt = "".join(message["content"] for message in body["messages"])
        assert COMMAND.findall(prompt.encode()) == [(b"clock", b"us")]
