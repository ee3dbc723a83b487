"""Forward mode: dual numbers, `jvp`, `linearize`, and the rules by kind."""
