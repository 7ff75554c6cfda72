"""`edriver dashboard`: a web page that follows a run, and the same page as one file, for `edriver report`."""
