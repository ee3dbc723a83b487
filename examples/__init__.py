"""Worked examples on real data."""
