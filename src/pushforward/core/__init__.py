"""What every interpreter shares: levels, traced values, cells, pytrees and errors."""
