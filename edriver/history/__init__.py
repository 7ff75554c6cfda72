"""What a run's events come to, drawn over time: for the page of `edriver dashboard` and for reports."""
