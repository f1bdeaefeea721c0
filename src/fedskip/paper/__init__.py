"""What the paper claims, checked: its theorem, its count of costs, its tables."""
