"""`Cache-Control` of a request (RFC 9111, 5.2.1), as far as it concerns answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheControl:
    """What a client wants of the cache.

    Attributes:
        store: the answer may come from it, and be kept in it.
        max_age: seconds that an answer may be old; None is any age. At 0 it is made anew.
    """

    store: bool = True
    max_age: float | None = None

    @property
    def takes_kept(self) -> bool:
        """Whether there may be an answer that is good enough."""
        return self.store and (self.max_age is None or self.max_age > 0)

    def takes(self, age: float) -> bool:
        """Whether an answer that is *age* seconds old is good enough."""
        return self.takes_kept and (self.max_age is None or age <= self.max_age)


ANY = CacheControl()
"""What a request without the header wants."""


def cache_control(header: str) -> CacheControl:
    """What *header* says; directives that do not concern answers are passed over.

    A `max-age` that is no number is 0, as the RFC has it: who asks for something new gets it.
    """
    store, max_age = True, None
    for directive in header.split(","):
        name, _, value = directive.strip().partition("=")
        match name.strip().lower():
            case "no-store":
                store = False
            case "no-cache":
                max_age = 0.0
            case "max-age":
                seconds = _seconds(value.strip().strip('"'))
                max_age = seconds if max_age is None else min(max_age, seconds)
    return CacheControl(store, max_age)


def _seconds(text: str) -> float:
    return float(text[:12]) if text.isascii() and text.isdigit() else 0.0
