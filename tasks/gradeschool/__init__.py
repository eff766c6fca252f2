"""Synthetic grade-school word problems in the form of GSM8K."""
