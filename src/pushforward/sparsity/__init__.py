"""Which inputs each output can depend on: the third interpreter over the operator table."""
