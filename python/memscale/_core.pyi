# The extension tells its signatures in its docstrings; for type checkers it is opaque.
from typing import Any

def __getattr__(name: str) -> Any: ...
