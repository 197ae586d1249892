"""Engines: what turns token ids into token ids."""
