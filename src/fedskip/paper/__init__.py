"""The paper: its studies, its published numbers, and ours beside them."""
