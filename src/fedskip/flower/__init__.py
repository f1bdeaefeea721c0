"""The same federation over Flower: real clients that keep their data. docs/federation.md is its page."""
