"""Speed and memory of pushforward, side by side with torch.func and plain autograd.

Run it with ``python -m benchmarks``. The files, in the order in which one reads them:

- ``problem``: what a workload consists of: a function, its arguments, tangents and batch, at three sizes.
- ``functions``, ``models``: the workloads themselves.
- ``transforms``: how each transform is written, for any library with torch.func's signatures, and by plain autograd.
- ``workloads``: the table of rows, a row being one workload under one transform.
- ``agreement``, ``timing``, ``memory``: do the sides agree, how long do they take, how much do they allocate.
- ``claims``: what is promised of the numbers. ``report``, ``picture``: how they are shown.
"""
