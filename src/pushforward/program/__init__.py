"""Transformed functions as programs: recorded, simplified, printed, costed and compiled."""
