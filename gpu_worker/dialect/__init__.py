"""How a model speaks: chat into tokens, tokens into text. Pure."""
