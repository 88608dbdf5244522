"""Somebody else's table as a queue: what they say of it, what the database says of it, and the SQL that follows."""
