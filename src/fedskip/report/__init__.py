"""What a study shows: its progress while it works, its table when it is done."""
