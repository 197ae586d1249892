import json

import pytest

from fastrun.bench.placement.trace import TraceError, at_rate, part, read_trace


def line(timestamp=0, input_length=1024, output_length=5, hash_ids=(0, 1)):
    record = {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": hash_ids,
    }
    return json.dumps(record).encode()


def read(*lines, accounts=1, seed=0):
    return read_trace(lines, accounts=accounts, seed=seed)


def test_requests():
    """A line is a request: milliseconds become seconds from the first one on, ids become blocks."""
    first, second = read(line(5000), line(6500, 1100, 7, [0, 1, 2]))

    assert (first.arrives_s, second.arrives_s) == (0.0, 1.5)
    assert (second.number, second.prompt_tokens, second.output_tokens) == (1, 1100, 7)


def test_blocks():
    """Equal ids are equal blocks; the last one is left out if it is not full."""
    first, second = read(line(), line(0, 1100, 7, [0, 9, 2]))

    assert len(first.blocks) == len(second.blocks) == 2
    assert first.blocks[0] == second.blocks[0]
    assert first.blocks[1] != second.blocks[1]


def test_order():
    """What arrived earlier comes first, wherever it stands."""
    assert [each.output_tokens for each in read(line(9, output_length=6), line(3))] == [5, 6]


def test_accounts():
    """A conversation stays with one account, and accounts share no blocks."""
    lines = [line(hash_ids=(0, 1 + number % 50)) for number in range(100)]
    requests = read(*lines, accounts=4)

    for one, again in zip(requests[:50], requests[50:], strict=True):
        assert (one.account, one.blocks) == (again.account, again.blocks)
    roots = {request.account: request.blocks[0] for request in requests}
    assert 4 == len(roots) == len(set(roots.values()))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[]",
        b'{"timestamp": 1}',
        line(timestamp=-1),
        line(timestamp="now"),
        line(input_length=0, hash_ids=()),
        line(output_length=0),
        line(input_length=1025),
        line(hash_ids=(0, "x")),
    ],
)
def test_malformed(bad):
    """What is no request is refused with the number of its line."""
    with pytest.raises(TraceError, match=r"^line 2: "):
        read(line(), bad, line())


def test_empty():
    """A trace without requests is none."""
    with pytest.raises(TraceError, match="empty"):
        read()


def test_halves():
    """The halves have all requests, and each begins at 0."""
    requests = read(*(line(1000 * number, output_length=1 + number) for number in range(5)))
    halves = part(requests, "first"), part(requests, "second")

    assert [each.output_tokens for half in halves for each in half] == [1, 2, 3, 4, 5]
    assert [half[0].arrives_s for half in halves] == [0.0, 0.0]
    assert requests == part(requests, "all")


def test_rate():
    """Time is scaled, and nothing else."""
    requests = at_rate(read(line(0), line(1000), line(3000), line(4000)), 8.0)

    assert [each.arrives_s for each in requests] == [0.0, 0.125, 0.375, 0.5]
