"""Digests that only those who have the secret can make."""

import hashlib
import hmac

SIZE = 32
"""Bytes of a digest."""


class Seal:
    """Keyed BLAKE2b (RFC 7693) with 256 bits over parts of any length.

    Each part goes in with its length before it, so that two lists of parts never make the same bytes.

    Args:
        secret: of any length; gateways that share a store have the same.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.blake2b(secret).digest()

    def digest(self, *parts: bytes) -> bytes:
        """The digest of *parts*, of `SIZE` bytes."""
        state = hashlib.blake2b(key=self._key, digest_size=SIZE)
        for part in parts:
            state.update(len(part).to_bytes(8))
            state.update(part)
        return state.digest()

    def fits(self, digest: bytes, *parts: bytes) -> bool:
        """Whether *digest* is that of *parts*; takes as long for any wrong one."""
        return hmac.compare_digest(digest, self.digest(*parts))
