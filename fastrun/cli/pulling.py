"""Gets a model's files: first what it is and whether there is room, then each, then a check."""

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fastrun.cli.errors import CommandError
from fastrun.cli.sources import Source, SourceFile
from gpu_worker import checkpoint
from gpu_worker.checkpoint import Checkpoint, CheckpointError, Choice, Format
from gpu_worker.model_file import ModelFile
from gpu_worker.model_fit import Target, objections
from gpu_worker.model_store import ModelStore, Pulled, PulledFile, slug

GIB = 1 << 30
MIB = 1 << 20
PARTS = ".parts"
_CHUNK = 1 << 22


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A model at its source."""

    choice: Choice
    model: Checkpoint


def look(source: Source, target: Target, *, file: str = "") -> Found:
    """Find out what a source holds, from its small files.

    Args:
        source: where it is.
        target: what it is to run on, for a source that has it in several formats.
        file: the GGUF file that is meant, if it is said.

    Raises:
        CommandError: no model can be made of it.
    """
    prefer = Format.SAFETENSORS if target.engine == "tensorrt-llm" else Format.GGUF
    sizes = {name: each.size for name, each in source.files.items()}
    try:
        choice = checkpoint.choose(sizes, file=file, prefer=prefer)
        model = checkpoint.describe(
            choice, sizes, read=source.read, gguf_architecture=source.gguf_architecture
        )
    except CheckpointError as error:
        raise CommandError(f"{source.name}: {error}") from error
    return Found(choice=choice, model=model)


def check(source: Source, found: Found, target: Target) -> None:
    """Make sure that the engine can run it.

    Raises:
        CommandError: with every reason why it cannot.
    """
    if reasons := objections(found.model, target):
        raise CommandError(f"{source.name}: {'; '.join(reasons)}. --anyway goes on all the same")


def pull(
    source: Source,
    found: Found,
    file: ModelFile,
    store: ModelStore,
    *,
    say: Callable[[str], None],
) -> None:
    """Bring a model's files here; what an earlier try has brought is not fetched again.

    Raises:
        CommandError: there is no room, the source fails, or a file is not what it has to be.
    """
    folder = store.folder(file)
    try:
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            _pull(source, found, file, store, say)
    except OSError as error:
        raise CommandError(f"{folder} cannot be written: {error.strerror}") from error


def _pull(
    source: Source, found: Found, file: ModelFile, store: ModelStore, say: Callable[[str], None]
) -> None:
    wanted = {name: source.files[name] for name in found.choice.names}
    folder, former = store.folder(file), store.pulled(file)
    missing = {
        name: each for name, each in wanted.items() if not _is_here(folder, name, each, former)
    }
    _check_room(folder, missing)
    record = Pulled(
        source=source.name,
        revision=source.revision,
        files={name: PulledFile(each.size, each.sha256) for name, each in wanted.items()},
    )
    # What the record says of a file holds from now on for those that are here.
    for name in missing:
        (folder / name).unlink(missing_ok=True)
    store.record(file, record)
    for name, each in missing.items():
        say(f"{name} ({amount(each.size)})")
        _fetch(source, name, each, folder)
    _remove_others(folder, former, wanted)
    store.record(file, msgspec.structs.replace(record, complete=True))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let no two processes append to the same files."""
    with (folder / PARTS / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"another pull writes to {folder}: wait until it ends") from None
        yield


def amount(size: int) -> str:
    """Say a number of bytes, such as ``1.5 GiB``."""
    unit, name = (GIB, "GiB") if size >= GIB else (MIB, "MiB")
    return f"{size / unit:.1f} {name}"


def _is_here(folder: Path, name: str, file: SourceFile, former: Pulled | None) -> bool:
    """Whether a file was fetched and checked before; only then it has its name."""
    known = former.files.get(name) if former else None
    path = folder / name
    return known == PulledFile(file.size, file.sha256) and (
        path.is_file() and path.stat().st_size == file.size and _git_fits(path, file)
    )


def _git_fits(path: Path, file: SourceFile) -> bool:
    return not file.git_sha1 or _digest(path, file) == file.git_sha1


def _check_room(folder: Path, missing: Mapping[str, SourceFile]) -> None:
    begun = sum(path.stat().st_size for path in (folder / PARTS).glob("*"))
    needed = max(0, sum(each.size for each in missing.values()) - begun)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CommandError(
            f"the disk of {folder.parent} has {amount(free)} left and {amount(needed)} are needed: "
            "make room, or choose another folder with --models"
        )


def _fetch(source: Source, name: str, file: SourceFile, folder: Path) -> None:
    # Another revision of the file has another part.
    part = folder / PARTS / f"{slug(name)}.{(file.sha256 or file.git_sha1)[:16]}"
    if part.exists() and part.stat().st_size > file.size:
        part.unlink()
    if not (part.exists() and part.stat().st_size == file.size):
        source.fetch(name, part)
    size = part.stat().st_size
    expected = file.sha256 or file.git_sha1
    if size != file.size or (expected and _digest(part, file) != expected):
        part.unlink()
        raise CommandError(
            f"{name} of {source.name} came damaged ({size} bytes of {file.size}, or another "
            "checksum than it should have): it is thrown away; run it again"
        )
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    part.replace(folder / name)


def _digest(path: Path, file: SourceFile) -> str:
    """Hash as the source does: LFS by the content, git by a header and the content."""
    if file.sha256:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _remove_others(folder: Path, former: Pulled | None, wanted: Mapping[str, SourceFile]) -> None:
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    for name in set(former.files if former else ()) - set(wanted):
        (folder / name).unlink(missing_ok=True)
