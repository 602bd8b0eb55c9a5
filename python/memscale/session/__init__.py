"""One wrapped model from `wrap()` on: what is known, and the plan that follows from it."""
