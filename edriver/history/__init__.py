"""What a run has left behind: its records read back, the list of runs, and TensorBoard's files."""
