"""What a report can be asked for: the score that methods are compared by, the format of figures."""

# columns of summary.csv that methods are compared by
SCORES = ("last", "best", "mean_tail", "best_val", "full_test")
FORMATS = ("pdf", "svg", "png")
