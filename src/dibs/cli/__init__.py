"""The command line: parses, calls the app, renders. It holds no rules of its own."""
