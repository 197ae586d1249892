"""Which kind of processor a model was lowered for."""

from gpu_worker.engine.cpu.processor import processor

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some CPU
cpu MHz\t\t: {clock}
flags\t\t: fpu sse avx2 {flags}

processor\t: 1
cpu MHz\t\t: 1234.5
"""


def told(tmp_path, **values):
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO.format(**{"clock": "2000.0", "flags": ""} | values))
    return processor(path)


def test_clocks_do_not_tell_processors_apart(tmp_path):
    """The same processor has the same name at each start."""
    assert told(tmp_path) == told(tmp_path, clock="2999.9")


def test_instructions_tell_processors_apart(tmp_path):
    """One that can do more, or another one, has another name."""
    assert told(tmp_path) != told(tmp_path, flags="avx512f")


def test_a_system_that_tells_nothing(tmp_path):
    """Where there is no such file there is a name all the same, short enough for a folder's."""
    assert len(processor(tmp_path / "absent")) == 8
