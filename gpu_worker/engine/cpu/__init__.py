"""The embedded engine: continuous batching on the CPU, on OpenVINO's paged attention."""
