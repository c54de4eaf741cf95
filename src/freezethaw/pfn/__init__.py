"""The prior-data fitted network that extrapolates learning curves, and its training."""
