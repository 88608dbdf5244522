"""What a breakage is: texts in files, what they become, and the tests that are meant to notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Edit:
    """One text in one file, and what it becomes. It must stand there exactly once, so that the list cannot go stale."""

    file: str
    old: str
    new: str

    def apply(self, tree: Path) -> None:
        """Break the copy."""
        path = tree / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise StaleBreakage(f"stands {text.count(self.old)} times in {self.file}, not once: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True, slots=True)
class Breakage:
    """One way to break dibs, and the tests that must notice; `engine` chooses among their parameters."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    engine: str = ""

    def apply(self, tree: Path) -> None:
        """Break the copy."""
        for edit in self.edits:
            edit.apply(tree)

    def undo(self, tree: Path, source: Path) -> None:
        """Mend the copy."""
        for edit in self.edits:
            (tree / edit.file).write_text((source / edit.file).read_text())


class StaleBreakage(Exception):
    """The code has moved on and the list has not."""
