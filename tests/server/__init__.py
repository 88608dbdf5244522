"""The server: over real sockets, on both engines."""
