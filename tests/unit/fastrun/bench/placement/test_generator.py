from fastrun.bench.placement.generator import Conversations, generate
from fastrun.bench.placement.trace import BLOCK_TOKENS

SHAPE = Conversations(requests=500, accounts=3)


def test_repeatable():
    """The same seed makes the same requests, and another one others."""
    assert generate(SHAPE, 1) == generate(SHAPE, 1) != generate(SHAPE, 2)


def test_requests():
    """There are as many as asked for, in order, and each has all its full blocks."""
    requests = generate(SHAPE, 1)

    assert list(range(500)) == [each.number for each in requests]
    assert requests == sorted(requests, key=lambda each: each.arrives_s)
    assert all(len(each.blocks) == each.prompt_tokens // BLOCK_TOKENS for each in requests)
    assert all(0 < each.output_tokens <= SHAPE.most_output_tokens for each in requests)
    assert {0, 1, 2} == {each.account for each in requests}


def test_growth():
    """Two prompts with equal blocks at some place have all blocks before it in common."""
    owners = {}
    for request in generate(SHAPE, 1):
        for at, block in enumerate(request.blocks):
            before = request.blocks[at - 1] if at else None
            assert (at, before, request.account) == owners.setdefault(
                block, (at, before, request.account)
            )


def test_sharing():
    """Conversations of an account share instructions, and turns share all that was said."""
    requests = generate(SHAPE, 1)
    seen = set()
    known = total = 0
    for request in requests:
        known += sum(block in seen for block in request.blocks)
        total += len(request.blocks)
        seen.update(request.blocks)

    assert len({request.blocks[0] for request in requests}) <= 3 * SHAPE.prompts_per_account
    assert 0.5 < known / total < 0.95
