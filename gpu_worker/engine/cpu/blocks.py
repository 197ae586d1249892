"""Which KV-cache blocks are free, held or reusable: the prefix cache's bookkeeping."""

from collections import OrderedDict
from hashlib import blake2b

DIGEST_BYTES = 32


def chain_start(cache_salt: str) -> bytes:
    """Begin a chain of block digests; chains of different salts never meet."""
    return blake2b(cache_salt.encode(), digest_size=DIGEST_BYTES, person=b"fastrun-salt").digest()


def chain_digest(parent: bytes, token_ids: bytes) -> bytes:
    """Name a full block by everything before it and its own tokens.

    A cryptographic hash, because equal digests share memory: a collision would show one account
    another's prompt.
    """
    return blake2b(parent + token_ids, digest_size=DIGEST_BYTES, person=b"fastrun-block").digest()


class BlockPool:
    """A fixed number of blocks with reference counts.

    A block is held (by one sequence or several), idle (nobody holds it, but its published content
    can be found again; the least recently used is given away first) or free.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # A stack, so that memory is touched only as far as it was ever needed.
        self._free = list(range(size - 1, -1, -1))
        self._holders = [0] * size
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """How many blocks can be allocated now; idle ones count."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        """How many blocks sequences hold."""
        return self.size - self.available

    @property
    def spare(self) -> int | None:
        """A block whose content nobody needs, for who writes to it before anybody allocates."""
        return self._free[-1] if self._free else None

    def allocate(self) -> int | None:
        """Take a block of no known content, or None if all are held."""
        if self._free:
            block = self._free.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            del self._block_of[self._digest_of.pop(block)]
        else:
            return None
        self._holders[block] = 1
        return block

    def find(self, digest: bytes) -> int | None:
        """Take the block published under digest, shared with its other holders, if there is one."""
        block = self._block_of.get(digest)
        if block is None:
            return None
        if self._holders[block] == 0:
            del self._idle[block]
        self._holders[block] += 1
        return block

    def publish(self, block: int, digest: bytes) -> None:
        """Let a held block of complete content be found; the first one published stays."""
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def release(self, block: int) -> None:
        """Give up one hold on a block."""
        assert self._holders[block] > 0, "a block was released more often than it was taken"
        self._holders[block] -= 1
        if self._holders[block] == 0:
            if block in self._digest_of:
                self._idle[block] = None
            else:
                self._free.append(block)
