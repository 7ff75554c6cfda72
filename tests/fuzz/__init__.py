"""Every gRPC method of ours under valid, mutated and random bytes; codecs and limits under any value (hypothesis)."""
