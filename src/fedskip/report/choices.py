"""What one can ask for: the score that methods are compared by, the format of figures, who tracks a study."""

# columns of summary.csv that methods are compared by
SCORES = ("last", "best", "mean_tail", "best_val", "full_test", "worst_clients")
FORMATS = ("pdf", "svg", "png")
TRACKERS = ("tensorboard", "wandb", "mlflow")
