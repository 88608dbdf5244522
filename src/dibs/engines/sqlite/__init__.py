"""SQLite 3.24 and later, by the standard library's sqlite3 (or the module that the app names)."""
