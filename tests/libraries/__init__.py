"""Scripts for the libraries that most people train with, unchanged, in restart mode: `make libraries`."""
