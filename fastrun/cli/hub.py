"""A model at Hugging Face, or at another hub that HF_ENDPOINT names, with the token in HF_TOKEN."""

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (  # type: ignore[attr-defined] # its own __all__ is elsewhere
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from fastrun.cli.errors import CommandError
from fastrun.cli.sources import SourceFile

TIMEOUT_S = 30.0
HUGGING_FACE = "https://huggingface.co"
HTTP_UNAUTHORIZED = 401
# Errors of writing, not of the hub.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG)
# What huggingface_hub speaks HTTP with differs between its versions.
_TRANSPORTS = ("httpx2", "httpx")


class HubSource:
    """One repository of it, at one commit."""

    def __init__(self, repository: str, revision: str) -> None:
        """Ask for its files.

        Args:
            repository: ``owner/name``.
            revision: a branch, a tag or a commit.

        Raises:
            CommandError: it is not there, or may not be had, or the hub does not answer.
        """
        self._repository = repository
        self._asked = revision
        self._endpoint = os.environ.get("HF_ENDPOINT", HUGGING_FACE).rstrip("/")
        self._api = huggingface_hub.HfApi(endpoint=self._endpoint)
        self.name = repository
        with self._said_plainly():
            info = self._api.model_info(
                repository, revision=revision, files_metadata=True, timeout=TIMEOUT_S
            )
        self.revision = info.sha or revision
        self.files: Mapping[str, SourceFile] = {
            each.rfilename: _file(each) for each in info.siblings or []
        }

    def read(self, name: str) -> bytes:
        """See Source."""
        with self._said_plainly():
            response = get_session().get(
                self._url(name), headers=build_hf_headers(), timeout=TIMEOUT_S
            )
            hf_raise_for_status(response)
            return bytes(response.content)

    def gguf_architecture(self, name: str) -> str:
        """Return what the hub says of the repository's GGUF files: it has read one of them."""
        del name
        with self._said_plainly():
            info = self._api.model_info(
                self._repository, revision=self.revision, expand=["gguf"], timeout=TIMEOUT_S
            )
        return str((info.gguf or {}).get("architecture", ""))

    def fetch(self, name: str, part: Path) -> None:
        """Append what the file lacks: huggingface_hub itself begins anew in each process."""
        url = self._url(name)
        headers = build_hf_headers()
        with self._said_plainly(), part.open("ab") as file:
            location = huggingface_hub.get_hf_file_metadata(url, timeout=TIMEOUT_S).location
            if urlsplit(location).netloc != urlsplit(url).netloc:
                # Where the bytes lie is somebody else, and the address says who may have them.
                headers.pop("authorization", None)
            http_get(
                location,
                file,
                resume_size=file.tell(),
                headers=headers,
                expected_size=self.files[name].size,
            )

    def _url(self, name: str) -> str:
        return huggingface_hub.hf_hub_url(
            self._repository, name, revision=self.revision, endpoint=self._endpoint
        )

    @contextmanager
    def _said_plainly(self) -> Iterator[None]:
        """Say in a sentence what fails."""
        unreachable: tuple[type[Exception], ...] = (OSError, *_transport_errors())
        try:
            yield
        except GatedRepoError as error:
            raise CommandError(
                f"{self._repository} is gated: accept its terms at "
                f"{self._endpoint}/{self._repository}, and set HF_TOKEN to a token of that account"
            ) from error
        except RevisionNotFoundError as error:
            raise CommandError(f"{self._repository} has no revision {self._asked}") from error
        except RepositoryNotFoundError as error:
            raise CommandError(
                f"there is no {self._repository} at {self._endpoint}, or not for everybody: "
                "HF_TOKEN says who you are"
            ) from error
        except HfHubHTTPError as error:
            raise CommandError(self._refused(error.response.status_code)) from error
        except unreachable as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            raise CommandError(
                f"{self._endpoint} cannot be reached, or broke off ({_reason(error)}): "
                "run it again to go on"
            ) from error

    def _refused(self, status: int) -> str:
        if status == HTTP_UNAUTHORIZED:
            return f"{self._endpoint} does not take the token in HF_TOKEN"
        return f"{self._endpoint} answers with status {status}: run it again to go on"


def _file(sibling: Any) -> SourceFile:
    lfs = sibling.lfs
    if lfs is not None:
        return SourceFile(int(lfs.size), sha256=str(lfs.sha256))
    return SourceFile(int(sibling.size or 0), git_sha1=str(sibling.blob_id or ""))


def _transport_errors() -> tuple[type[Exception], ...]:
    modules = (sys.modules.get(name) for name in _TRANSPORTS)
    return tuple(module.HTTPError for module in modules if module is not None)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
