"""`python -m pushforward.cli` is the `pushforward` command."""

import sys

from .main import main

sys.exit(main())
