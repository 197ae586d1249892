"""Which versions of fastrun's services work together."""


def together(one: str, other: str) -> bool:
    """Whether two versions speak the same protocol: at most one minor version lies between them.

    What a version says without numbers, such as nothing, works with none.
    """
    try:
        (major, minor), (others_major, others_minor) = _numbers(one), _numbers(other)
    except ValueError:
        return False
    return major == others_major and abs(minor - others_minor) <= 1


def _numbers(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
