"""How exactly the network computes, and how OpenVINO is told so."""

from collections.abc import Mapping
from typing import Literal

Precision = Literal["exact", "fast"]

# Only so are answers the same alone, batched, cached and resumed.
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
# Products with weights are where the time goes. bf16 for the rest, and 8 bits for the cache, gain
# nothing, and let a row depend on its company.
FAST = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f16",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
}
PROPERTIES: Mapping[Precision, Mapping[str, str]] = {"exact": EXACT, "fast": FAST}
