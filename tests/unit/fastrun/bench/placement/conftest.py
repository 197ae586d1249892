"""What the simulator's tests share: requests in one line, and no logs of thousands of joins."""

import pytest
import structlog

from fastrun.bench.placement.trace import Request, mixed


@pytest.fixture(autouse=True)
def _quiet():
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    yield
    structlog.reset_defaults()


@pytest.fixture
def ask():
    """How to make a request; prompts of the same topic begin alike."""

    def make(number=0, *, at=0.0, prompt=1024, output=10, topic=0, account=0):
        return Request(
            number=number,
            account=account,
            arrives_s=at,
            prompt_tokens=prompt,
            output_tokens=output,
            blocks=tuple(mixed(account, topic, block) for block in range(prompt // 512)),
        )

    return make
