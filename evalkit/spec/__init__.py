"""Gate specifications: a YAML file that says what a gate compares, and `evalkit gate SPEC` that does it."""

from evalkit.spec.model import CellSpec, Spec
from evalkit.spec.read import SCHEMA_FILE, looks_like_spec, read_spec

__all__ = ["SCHEMA_FILE", "CellSpec", "Spec", "looks_like_spec", "read_spec"]
