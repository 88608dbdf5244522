"""Jobs over HTTP and WebSockets: an ASGI application, for `dibs serve` or to be mounted in yours."""

from dibs.server.asgi import asgi

__all__ = ["asgi"]
