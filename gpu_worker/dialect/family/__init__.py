"""How each family of models speaks; one small module for each."""
