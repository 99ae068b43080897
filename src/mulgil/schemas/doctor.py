"""What `GET /v1/doctor/stream` may be asked for."""

from pydantic import ConfigDict, Field

from mulgil.schemas.base import RequestModel


class DoctorStreamQuery(RequestModel):
    """A test stream; read from a query, so numbers come as text."""

    model_config = ConfigDict(strict=False, use_attribute_docstrings=True)

    events: int = Field(default=20, ge=1, le=200)
    """Number of events."""
    gap_ms: int = Field(default=100, ge=0, le=10_000)
    """Milliseconds between two of them."""
    idle_s: float = Field(default=0.0, ge=0, le=120, allow_inf_nan=False)
    """Seconds of silence in the middle."""
    pings: bool = True
    """Whether that silence has comment lines, as that of a real stream has."""
    padding: int = Field(default=0, ge=0, le=16_384)
    """Bytes that each event is longer."""

    @property
    def seconds(self) -> float:
        """How long the stream takes."""
        return self.events * self.gap_ms / 1000 + self.idle_s
