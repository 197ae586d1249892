"""The gRPC stubs of protos/fastrun/v1, made at install by hatch_build.py and never committed."""
