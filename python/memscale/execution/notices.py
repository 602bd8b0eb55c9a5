"""Messages of an executor to the user, each logged once."""

from __future__ import annotations

import logging

__all__ = ["Notices"]

_log = logging.getLogger("memscale")

_OBSTACLES = {
    "foreign": "saved-tensor hooks of someone else are active (torch.utils.checkpoint, save_on_cpu, ...); such hooks "
    "do not stack, so memscale does nothing while they are active",
    "wrapped": "memscale has wrapped this {model} and also a module around or inside it; saved-tensor "
    "hooks do not stack, so only one of the two plans acts on the inner module: detach one of them",
    "disabled": "saved-tensor hooks are disabled here (torch.func transforms do that); memscale does nothing here",
    "transformed": "{model} runs inside a transform of torch.func (vmap, jvp), whose tensors stand for others; "
    "memscale does nothing here",
}


class Notices:
    """Log lines about one model. No line is repeated."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._said: set[str] = set()

    def say(self, key: str, level: int, text: str) -> None:
        """Logs `text`, unless something was said under `key` before."""
        if key not in self._said:
            self._said.add(key)
            _log.log(level, "%s", text)

    def say_obstacle(self, obstacle: str) -> None:
        """Logs the reason, given by C, why saved-tensor hooks can't be used here."""
        self.say(obstacle, logging.WARNING, _OBSTACLES[obstacle].format(model=self._model_name))

    def take_back(self, key: str) -> bool:
        """Lets `key` be said again. Returns whether something was said under it."""
        was_said = key in self._said
        self._said.discard(key)
        return was_said
