"""Batching: `vmap`, its level, and the rules by kind."""
