"""The engine for NVIDIA GPUs: TensorRT-LLM, its surprises kept behind the Engine protocol."""
