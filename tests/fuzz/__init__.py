"""Every gRPC method of ours under valid, mutated and random bytes."""
