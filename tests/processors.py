"""What the processor of this machine can do."""

from pathlib import Path

import pytest

_CPUINFO = Path("/proc/cpuinfo")

needs_avx2 = pytest.mark.skipif(
    not _CPUINFO.exists() or " avx2 " not in _CPUINFO.read_text(errors="replace"),
    reason="without AVX2 a lowered model may compute other bits, and then none is kept",
)
