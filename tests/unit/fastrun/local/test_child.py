import signal

from fastrun.local import child
from fastrun.local.child import LogFile, told


def test_told():
    """An exit is said as people say it, with a hint where memory may be short."""
    assert told(3) == "status 3"
    assert told(-signal.SIGSEGV) == "SIGSEGV"
    assert told(-signal.SIGKILL) == "SIGKILL (is there enough memory?)"


def test_log_is_bounded(tmp_path, monkeypatch):
    """A log begins anew when it has grown too long, and one former file is kept."""
    monkeypatch.setattr(child, "LOG_BYTES", 10)
    log = LogFile(tmp_path / "edge.log")
    for line in (b"one two three\n", b"four\n"):
        log.write(line)
    log.close()

    assert (tmp_path / "edge.log.1").read_bytes() == b"one two three\n"
    assert (tmp_path / "edge.log").read_bytes() == b"four\n"


def test_log_that_cannot_be_written(tmp_path):
    """A log that cannot be written costs lines and nothing else."""
    log = LogFile(tmp_path / "missing" / "edge.log")

    log.write(b"line\n")
    log.close()
