"""What versions can do."""

import pytest

from gpu_worker.engine.tensorrt_llm import contract
from gpu_worker.engine.tensorrt_llm.features import of_version, ordered


def test_versions_are_ordered():
    """A candidate comes before its release, and the tenth after the ninth."""
    versions = ["1.2.0rc3", "1.2.1", "1.3.0rc9", "1.3.0rc29", "1.3.0", "1.4.0rc1"]
    mixed = {*versions}
    assert versions == sorted(mixed, key=ordered)
    assert ordered("1.3.0rc29.post1") > ordered("1.3.0rc9")
    with pytest.raises(ValueError, match="0-contract"):
        ordered("0-contract")


@pytest.mark.parametrize(
    ("version", "penalties", "newest", "least"),
    [
        ("1.2.1", False, False, 1),
        ("1.3.0rc23", False, False, 1),
        ("1.3.0rc24", True, False, 1),
        ("1.3.0rc26", True, False, 0),
        (contract.read()["target"], True, True, 0),
        ("1.4.0rc1", True, True, 0),
    ],
)
def test_features_come_with_versions(version, penalties, newest, least):
    """Each version has what its documentation says."""
    found = of_version(version, ["prompt_ignore_length"])
    assert (found.penalties, found.least_logprobs) == (penalties, least)
    assert (found.seeds, found.min_p) == (newest, newest)
    assert found.prompt_ignored
    assert not of_version(version, []).prompt_ignored
