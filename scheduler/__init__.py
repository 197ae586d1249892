"""Which worker, now or queued or refused."""
