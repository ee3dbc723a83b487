"""Jacobians, Hessians and products with them."""
