"""`fastrun bench`: measures a running stack from outside, as a client sees it."""
