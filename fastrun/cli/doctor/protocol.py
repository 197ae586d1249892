"""Whether a service of some version speaks the protocol of ours. Pure."""

from collections.abc import Iterable, Iterator
from itertools import combinations

from fastrun import __version__
from fastrun.cli.doctor.finding import Finding, ok, wrong
from fastrun.service.versions import together


def apart(versions: Iterable[str]) -> Iterator[Finding]:
    """Whether services that each work with ours do not work with one another."""
    fitting = sorted({each for each in versions if together(__version__, each)})
    for one, other in combinations(fitting, 2):
        if not together(one, other):
            yield wrong(
                "protocol",
                f"fastrun {one} and {other} run beside each other and do not speak the same "
                "protocol: upgrade the older ones",
            )


def check(what: str, version: str) -> Finding:
    """Whether it works with ours.

    Args:
        what: the service.
        version: as it says; empty: it is too old to say.
    """
    ours = __version__
    if not version:
        return wrong("protocol", f"the {what} is older than fastrun {ours} can tell: upgrade it")
    if not together(ours, version):
        return wrong(
            "protocol",
            f"the {what} is fastrun {version} and this one is {ours}, which do not speak the same "
            "protocol: upgrade the older one, by one minor version at a time",
        )
    return ok("protocol", f"the {what} is fastrun {version}")
