"""Checks of derivatives: differences that know about kinks, the routes compared, NaN found."""
