"""`fastrun bench placement`: a simulated fleet that tells policies of placement apart.

Requests come from a trace or from made-up conversations; workers compute in virtual time and keep a
prefix cache each. One of the policies is the real scheduler, driven by its own messages.
"""
