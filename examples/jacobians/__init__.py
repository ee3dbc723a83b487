"""Real jobs for sparse Jacobians and Hessians; each file runs by itself."""
