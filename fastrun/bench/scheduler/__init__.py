"""`fastrun bench scheduler`: a real scheduler process under the load of edges and workers.

The edges and workers are simulated, and hold real sessions over gRPC: what is measured is the way
from an edge's Acquire to its Granted, and what that costs the scheduler.
"""
