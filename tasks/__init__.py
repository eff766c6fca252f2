"""Task definitions (lm-eval YAMLs) and their data."""
