"""A scheduler as a process of its own."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fastrun.local import certificates, environment
from fastrun.local.child import Child, Lifeline
from fastrun.local.log_file import LogFile
from fastrun.local.supervised import tls_settings


@pytest.fixture
async def pid(tmp_path):
    """Of one that serves."""
    certificates.provide(tmp_path, certificates.EVERYONE, datetime.now(UTC))
    settings = environment.of_service({}, "scheduler", tls_settings(tmp_path / "scheduler"))
    lifeline, log = Lifeline(), LogFile(tmp_path / "scheduler.log")
    scheduler = Child(
        "scheduler",
        ["-m", "scheduler"],
        {**os.environ, **settings},
        lifeline=lifeline,
        log=log,
        on_line=lambda _line: None,
    )
    await scheduler.start(60.0)
    yield scheduler.pid
    await scheduler.stop(5.0)
    lifeline.close()
    log.close()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has this policy")
def test_threads_do_not_interrupt_each_other(pid):
    """Each of its threads works in batches: who is woken waits for who runs."""
    threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    assert len(threads) > 1
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}
