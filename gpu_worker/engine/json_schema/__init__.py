"""JSON Schemas as engines take them: in few keywords, each of which is enforced as it stands."""
