"""Breakages on purpose: a property that matters is shown by breaking it and seeing a test fail."""
