"""Text for people, and text that arrives from outside: rendered, bounded and made printable in one place."""
