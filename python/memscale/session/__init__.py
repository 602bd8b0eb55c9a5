"""One wrapped model from `wrap()` to `detach()`: its documents and its plans."""
