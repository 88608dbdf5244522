"""What a drain did, for people and for machines."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True)
class DrainReport:
    """What a drain did.

    >>> print(DrainReport(available=2, claimed=2, successful=2, seconds=0.5))
    claimed 2 of 2 jobs in 0.5 s: 2 successful
    """

    recovered: int = 0
    available: int = 0
    claimed: int = 0
    successful: int = 0
    retried: int = 0
    failed: int = 0
    processing: int = 0
    released: int = 0
    refused: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        parts = [
            f"{getattr(self, name)} {name}"
            for name in ("successful", "processing", "retried", "failed", "released", "refused", "recovered")
        ]
        said = [part for part in parts if not part.startswith("0 ")]
        of = max(self.available, self.claimed)
        return f"claimed {self.claimed} of {of} jobs in {self.seconds:.1f} s" + (f": {', '.join(said)}" if said else "")

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {each.name: getattr(self, each.name) for each in fields(self)}
