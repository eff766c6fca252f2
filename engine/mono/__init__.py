"""Mono: a second implementation of the target's decode and verify steps, for few rows over FP8 caches.

router.py says which steps it serves and counts them (standard library only); path.py computes them over the
packed weights of weights.py.
"""
