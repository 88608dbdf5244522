"""Conversations with the database, written once, without I/O, SQL text or engine names."""
