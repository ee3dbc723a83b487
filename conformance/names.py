"""The compositions that are swept, and what can become of one."""

from __future__ import annotations

BATCHING = ("vmap", "vmap_vmap")
DERIVATIVES = ("jvp", "vjp", "vmap_jvp", "vmap_vjp", "jvp_vjp", "jvp_jvp", "vjp_vjp", "vmap_hessian")
TRANSFORMS = (*BATCHING, *DERIVATIVES)

# From the best to the worst. "none": nothing to compare; "torch fails": torch's own loop or autograd raises.
STATUSES = ("none", "torch fails", "pass", "slow", "error", "timeout", "wrong", "crash")
COMPARED = STATUSES[2:]
BAD = STATUSES[4:]

# How the reasons begin that are kept although other samples pass.
REFUSED, KINK = "refused: ", "autograd and differences disagree"

# Operators whose first derivative torch.autograd gets wrong, found by central differences of every one of the database.
WRONG_IN_TORCH = {
    "as_strided_scatter": "reverse mode keeps the gradient of the elements that are written over, and drops that of the others",
}
