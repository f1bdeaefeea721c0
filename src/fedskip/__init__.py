"""fedskip: federated learning by skipping."""
