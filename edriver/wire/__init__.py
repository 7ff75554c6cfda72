"""How edriver's processes talk: the ends of gRPC links, TLS, limits of messages, and of callers without credentials.

Start with `unauthenticated.py`, which all servers share, and `guarded_server.py`, the gRPC server at a TCP port.
"""
