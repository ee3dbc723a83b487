"""`python -m pushforward.cli` is the `pushforward` command."""

import sys

from pushforward.cli.main import main

sys.exit(main())
