"""The `pushforward` command: transforms of a function of yours, from the terminal."""

from .main import main

__all__ = ["main"]
