"""What a study leaves behind: history, results, checkpoints, and how it was made."""
