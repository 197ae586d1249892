"""How a model speaks: template, tokens, text; and the engines that run it."""
