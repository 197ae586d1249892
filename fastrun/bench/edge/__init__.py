"""`fastrun bench edge`: what an edge costs for each token and request, beside other gateways.

The edge is that of a whole stack with everything on, as `fastrun up` starts it, and has a core of
its own.
"""
