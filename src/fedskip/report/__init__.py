"""Results of studies: tables, statistics, figures, the page, progress, trackers. Here: what one can ask for by name."""

# columns of summary.csv that methods are compared by
SCORES = ("last", "best", "mean_tail", "best_val", "full_test", "worst_clients")
FORMATS = ("pdf", "svg", "png")  # of figures
TRACKERS = {"tensorboard": "TensorBoard", "wandb": "WandB", "mlflow": "MLflow"}  # module, class
