"""Asking people what a result is worth to them: `freezethaw prefer`."""
