"""The pure core: every decision about a run. `Membership.step(event, now)` returns actions.

No clock, lock, log, await, random number, I/O, or sentence. Imports `common.ids`, `common.limits`, `common.defaults`
and `discovery.hosts`, and nothing else of edriver. Start with `membership.py`, then `events.py`, `actions.py`,
`run_state.py` and `cause.py`.
"""
