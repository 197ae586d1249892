"""Whether two clocks agree, as certificates, keys' ends and days of usage need it. Pure."""

from fastrun.cli.doctor.finding import Finding, ok, wrong

MOST_S = 5.0


def compare(whose: str, theirs_s: float, *, before_s: float, after_s: float) -> Finding:
    """Compare a clock that was read elsewhere with ours.

    Args:
        whose: what it is the clock of.
        theirs_s: what it said, in seconds since 1970.
        before_s: what ours said when it was asked.
        after_s: what ours said when it had answered.
    """
    ahead = before_s - theirs_s if theirs_s < before_s else min(0.0, after_s - theirs_s)
    if abs(ahead) <= MOST_S:
        return ok("clock", f"agrees with that of {whose}")
    way = "ahead of" if ahead > 0 else "behind"
    return wrong(
        "clock",
        f"the clock here is {abs(ahead):.0f} s {way} that of {whose}: let NTP set both",
    )
