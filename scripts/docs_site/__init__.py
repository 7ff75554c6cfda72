"""The documentation: hooks.py is what `make docs` adds to MkDocs; parts.py, what `make docs-values` writes in pages."""
