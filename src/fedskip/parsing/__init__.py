"""Reads what users write: YAML, dotted keys, values with types and ranges, and their own code by name."""
