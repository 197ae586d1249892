"""What a stack does beside its processes."""

import asyncio
import io
from datetime import UTC, datetime, timedelta

from fastrun.local import stack
from fastrun.local.certificates import EVERYONE, provide
from fastrun.local.folder import DataFolder
from fastrun.local.output import Output
from fastrun.local.stack import Options, Stack


async def test_certificates_are_renewed_while_it_runs(tmp_path, monkeypatch):
    """What would end soon is made anew without a restart, and a failure is told and tried again."""
    monkeypatch.setattr(stack, "RENEWAL_S", 0.01)
    folder, said = DataFolder(tmp_path / "data"), io.StringIO()
    provide(folder.certs, EVERYONE, datetime.now(UTC) - timedelta(days=300))
    paths = [folder.certs / each.role / "cert.pem" for each in EVERYONE]
    before = [path.read_bytes() for path in paths]
    key = folder.certs / "ca" / "key.pem"
    lost = key.read_bytes()
    key.unlink()

    async def until(condition):
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)

    made = Stack(Options(worker_settings={}), folder, Output(said), {})
    renewing = asyncio.create_task(made._renew_certificates())
    try:
        await until(lambda: f"cannot read {key}" in said.getvalue())
        key.write_bytes(lost)
        await until(
            lambda: all(path.read_bytes() != old for path, old in zip(paths, before, strict=True))
        )
    finally:
        renewing.cancel()
        made.lifeline.close()
