"""HTTP/2 (RFC 9113) for gRPC servers: a connection without I/O, and a transport on asyncio around it."""
