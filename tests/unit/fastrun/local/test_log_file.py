from fastrun.local import log_file
from fastrun.local.log_file import LogFile


def test_log_is_bounded(tmp_path, monkeypatch):
    """A log begins anew when it has grown too long, and one former file is kept."""
    monkeypatch.setattr(log_file, "LOG_BYTES", 10)
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


def test_log_of_the_former_run(tmp_path):
    """A new run begins its own log and keeps that of the former one."""
    for line in (b"before\n", b"now\n"):
        log = LogFile(tmp_path / "edge.log")
        log.write(line)
        log.close()

    assert (tmp_path / "edge.log.1").read_bytes() == b"before\n"
    assert (tmp_path / "edge.log").read_bytes() == b"now\n"
