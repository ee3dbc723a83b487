"""The influenza epidemic of 1978 in an English boarding school: a model, its fit, and what its curve depends on."""
