"""What engines that hold their output to grammars by llguidance have in common."""
