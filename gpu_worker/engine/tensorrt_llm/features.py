"""What a version of TensorRT-LLM can do, told from its version and from the names that it has.

Nothing here is tried out: an engine that ignores a parameter does so without a word.
"""

import re
from collections.abc import Collection

import msgspec

OLDEST = "1.2.1"

# Its documentation lists penalties from this version on; older samplers ignore them.
PENALTIES_SINCE = "1.3.0rc24"
# `logprobs=0` reports the sampled token alone; before, it reported nothing.
NO_ALTERNATIVES_SINCE = "1.3.0rc26"
# Each request has random numbers of its own.
SEEDS_SINCE = "1.3.0rc29"
# Its documentation lists `min_p` for long, as another sampler had it. The one in use has it since
# pull request 16590 of July 2026: some candidate before this one may have it as well.
MIN_P_SINCE = "1.3.0rc29"

_FINAL = 1 << 30
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.?(?:a|b|rc|post|dev)(\d+))?")


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What an installed version can do, beside what all of them can."""

    version: str
    penalties: bool
    seeds: bool
    min_p: bool
    # Penalties on what is generated only, as OpenAI has them; else the prompt counts as well.
    prompt_ignored: bool
    # The least that `logprobs` may be for the sampled token's own to come.
    least_logprobs: int


def ordered(version: str) -> tuple[int, int, int, int]:
    """Return a version as something that compares; a release follows its candidates.

    Raises:
        ValueError: it is not written as TensorRT-LLM's are.
    """
    found = _VERSION.match(version)
    if found is None:
        raise ValueError(f"{version!r} is no version")
    major, minor, patch, candidate = found.groups()
    return (
        int(major),
        int(minor),
        int(patch),
        _FINAL if candidate is None else int(candidate),
    )


def check(version: str) -> None:
    """Refuse a version that the adapter was not written for.

    Raises:
        ValueError: it is too old, or not written as TensorRT-LLM's are.
    """
    if ordered(version) < ordered(OLDEST):
        raise ValueError(f"{version} is too old: {OLDEST} is the oldest that works")


def of_version(version: str, sampling_fields: Collection[str]) -> Features:
    """Return what a version can do.

    Args:
        version: such as ``1.3.0rc29``.
        sampling_fields: the names that its SamplingParams have.

    Raises:
        ValueError: the version cannot be read.
    """
    installed = ordered(version)
    return Features(
        version=version,
        penalties=installed >= ordered(PENALTIES_SINCE),
        seeds=installed >= ordered(SEEDS_SINCE),
        min_p=installed >= ordered(MIN_P_SINCE),
        prompt_ignored="prompt_ignore_length" in sampling_fields,
        least_logprobs=0 if installed >= ordered(NO_ALTERNATIVES_SINCE) else 1,
    )
