"""`fastrun bench engine`: the CPU engine, beside other engines with the same model.

Each engine runs in a process of its own, one at a time, and its processor time is that of the
process. What else the machine does changes rates more than it changes ratios: runs of all engines
alternate, and medians count.
"""
