"""The paper: its studies, its numbers and ours beside them, its theorem and its count of costs."""
