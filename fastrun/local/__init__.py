"""`fastrun up`: the whole stack on one machine, as child processes."""
