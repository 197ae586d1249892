import signal

from fastrun.local.child import told


def test_told():
    """An exit is said as people say it, with a hint where memory may be short."""
    assert told(3) == "status 3"
    assert told(-signal.SIGSEGV) == "SIGSEGV"
    assert told(-signal.SIGKILL) == "SIGKILL (is there enough memory?)"
