"""What `make docs` adds to MkDocs: pages and values that are generated from the source. Start reading at hooks.py."""
