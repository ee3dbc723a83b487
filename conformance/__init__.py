"""A sweep over PyTorch's operator database: every transform of every operator against loops, autograd and differences.

    ./run conformance                     all of it; the exit code is 1 where anything is worse than what is recorded
    ./run conformance --only '^linalg_'   some operators
    ./run conformance --record            and keep the result as the new record, with the coverage page made from it

The records lie in `conformance/recorded`; `docs/coverage.md` shows them beside the operator table.
"""
