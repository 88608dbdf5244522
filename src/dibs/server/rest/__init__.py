"""The REST API, a module for each kind of thing. A route says its scope and its shapes: OpenAPI is made of that."""
