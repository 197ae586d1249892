"""What every service is built with; knows no service.

To be imported before gRPC is, which reads once, as it is loaded, how its core waits for sockets:
in the thread that waits for what has become of calls, and not in a pool of others (decision 60).
And what it writes to stderr beside our logs, such as when a server goes away: only errors.
"""

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
