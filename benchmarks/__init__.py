"""One small program per question, each answered as a ratio to the floor of its database. See README.md."""
