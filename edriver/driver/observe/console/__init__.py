"""What the driver prints: the workers' output, announcements, the progress bar, and how a run ended."""
