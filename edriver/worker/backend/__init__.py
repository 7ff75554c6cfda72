"""The one seam: what edriver uses of torch, Gloo, CPython and the kernel although its owner does not promise it.

Each function here documents which interface it uses, what breaks if that changes, and how that shows; all were checked
with torch 2.11, 2.13 and 2.15 and CPython 3.11. Nothing else of edriver uses such interfaces
(tests/unit/test_torch_seam.py). Start with `checks.py`, which tries them out: a worker at its start, and `edriver
doctor`.
"""
