"""The operator table: one row an ATen operator, one file a family."""
