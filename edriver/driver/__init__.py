"""The driver: one process per run, the only writer of membership.

Start with `core/membership.py` for the decisions and `run/core_loop.py` for the event loop that feeds it. `run` is one
run from start to end, `config` what it was asked to do, `feeds`, `agents` and `services` whom it talks with. Only
`edriver.cli` imports from here.
"""
