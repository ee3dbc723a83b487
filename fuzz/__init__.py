"""Long runs of random programs against the loop: `./run fuzz`."""
