"""Both articles' statements, word for word, and the same experiments on ours: `make articles`."""
