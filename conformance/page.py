"""The coverage page."""
def write_page(): pass
