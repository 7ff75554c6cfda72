"""What `edriver WORD` does to a run that goes on, for each word."""
