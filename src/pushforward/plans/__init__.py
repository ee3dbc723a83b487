"""Plans: what a call of torch's API does to payloads, recorded once and replayed as plain calls.

Under a transform each operator passes dispatch, a handler and a rule, which costs more than a small operator computes. For
arguments of the same sizes, dtypes and levels all of that comes to the same short list of operators on payloads, so
from the third call on the list is run directly. `describe` says what a list depends on, `record` makes one, `replay` runs it.
"""

from __future__ import annotations

from . import linear as linear
from . import replay as replay
from . import whole as whole
