"""Two engines that carry the operations: SQLite and PostgreSQL, with native SQL under the same statement names."""
