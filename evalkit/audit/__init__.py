"""Measures the error rates of the rules in evalkit.stats by seeded simulation; `make audit` writes docs/audit.md.

A rule that is off its promise fails the audit: a test's size at the margin may exceed alpha by three simulation
standard errors, an interval's coverage may leave its range by as much.
"""

from __future__ import annotations

from evalkit.audit.row import QUICK, Row, Sizes
from evalkit.audit.rules import Rules
from evalkit.audit.simulate import Audit

__all__ = ["QUICK", "Audit", "Row", "Rules", "Sizes"]
