"""PostgreSQL 14 and later, by psycopg 3."""
