"""Copies of tensors and of small values, made at boundaries and commits.

Start with `snapshot.py`.
"""
