"""The pure core: every decision about a run. `Membership.step(event, now)` returns actions.

No clock, lock, log, await, random number or I/O. Imports `common.ids`, `common.limits`, `common.defaults`,
`discovery.hosts` and `text.phrases`, and nothing else of edriver. Start with `membership.py`, then
`events.py` and `actions.py`.
"""
