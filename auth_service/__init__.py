"""Who is this key, may it call, and what did it use."""
