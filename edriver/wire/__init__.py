"""How edriver's processes talk: messages to values and back, the ends of links, TLS, limits of messages and callers.

Start with `unauthenticated.py`, which all servers share, and `guarded_server.py`, the gRPC server at a TCP port.
"""
