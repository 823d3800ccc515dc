"""What is kept on disk: baselines."""
