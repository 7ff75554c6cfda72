"""Whether the training thread makes progress, and what to say of it if it does not."""
