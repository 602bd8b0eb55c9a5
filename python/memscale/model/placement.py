"""Where a model computes, if its parameters lie on several devices (`device_map`, placed by hand).

Each accelerator then has an executor and a plan of its own. The one of a device counts the tensors on that device and
acts on the layers that compute there; what lies elsewhere takes time, and no bytes. Layers whose parameters lie on
several devices, and the root's own work, belong to none: their tensors stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device import kind_of, training_device
from ..errors import IntegrationError
from .layers import find_layers

if TYPE_CHECKING:
    import torch

__all__ = [
    "Placement",
    "device_of",
    "devices_of",
    "name_on",
    "placement_on",
    "placements_of",
    "planned_device",
    "planned_names",
    "refuse_moved",
]


@dataclass(frozen=True)
class Placement:
    """One device of a model that lies on several.

    Attributes:
        device: the device.
        number: of the model, nonzero; its placements share it, and those of other models that live have others.
        index, count: this placement's place among the model's, and how many there are.
    """

    device: torch.device
    number: int
    index: int
    count: int

    @property
    def leads(self) -> bool:
        """Whether this device's executor also does what is done once a model, such as switching autocast on."""
        return self.index == 0

    def layers(self, model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
        """The layers that compute on this device, as `find_layers()` gives them."""
        return [(name, layer) for name, layer, device in _placed_layers(model) if device == self.device]

    def hooked_by_all(self, model: torch.nn.Module) -> set[int]:
        """The identities of the layers that compute on an accelerator, whose executors hook them."""
        placed = _placed_layers(model)
        return {id(layer) for _, layer, device in placed if device is not None and not kind_of(device).is_host}

    def elsewhere(self, model: torch.nn.Module) -> frozenset[str]:
        """The names of the other layers."""
        return frozenset(name for name, _, device in _placed_layers(model) if device != self.device)


def placements_of(model: torch.nn.Module) -> list[Placement]:
    """A placement for each accelerator that holds parameters; empty if all parameters lie on one device.

    Raises:
        IntegrationError: some parameters are on the meta device and others are not, as after offloading by accelerate.
    """
    found = {parameter.device for parameter in model.parameters()}
    devices = sorted(found, key=lambda device: (device.type, device.index or 0))
    if len(devices) < 2:
        return []
    if any(device.type == "meta" for device in devices):
        raise IntegrationError(
            f"{type(model).__name__} has parameters on {' and '.join(map(str, devices))}: those on meta are brought by "
            "another library, call by call, which memscale can't plan; place all of them on devices"
        )
    planned = [device for device in devices if not kind_of(device).is_host]
    return [Placement(device, id(model), index, len(planned)) for index, device in enumerate(planned)]


def placement_on(model: torch.nn.Module, device: str | torch.device | None) -> Placement | None:
    """The placement of a model on a device; None if the model lies on one, and that is asked for or none is.

    Raises:
        IntegrationError: the model lies on several and none is named, or not on the one that is.
    """
    placements = placements_of(model)
    known = planned_names(model, placements)
    if device is None and len(known) > 1:
        raise IntegrationError(
            f"{type(model).__name__} has parameters on {' and '.join(known)}, and a plan is for one of them: name it, "
            f'as in device="{known[0]}"'
        )
    if device is not None and str(device) not in known:
        raise IntegrationError(f"{type(model).__name__} can be planned on {' and '.join(known)}, not on {device}")
    return next((placement for placement in placements if device is None or str(placement.device) == str(device)), None)


def planned_names(model: torch.nn.Module, placements: list[Placement]) -> list[str]:
    """The names of the devices that plans are made for; `placements` are those of the model."""
    return [str(placement.device) for placement in placements] or [str(training_device(model))]


def planned_device(model: torch.nn.Module, placement: Placement | None) -> torch.device:
    """The device whose memory is planned: that of the placement, if there is one, else the model's."""
    return training_device(model) if placement is None else placement.device


def devices_of(model: torch.nn.Module) -> dict[int, torch.device]:
    """The devices of the parameters, by the parameters' identities."""
    from ..base.walk import parameters_of  # needs torch, and this module is imported where there may be none

    return {id(parameter): parameter.device for parameter in parameters_of(model)}


def refuse_moved(model: torch.nn.Module, known: dict[int, torch.device], placement: Placement | None) -> None:
    """Raises IntegrationError if a model that has a plan for each of several devices lies otherwise than in `known`,
    which `devices_of()` gave when it was wrapped; or if one that lay on one device lies on several now."""
    if placement is not None:
        moved = any(known.get(number, device) != device for number, device in devices_of(model).items())
    else:
        moved = len(set(known.values())) < 2 and bool(placements_of(model))
    if moved:
        raise IntegrationError(
            f"{type(model).__name__} was moved among devices since it was wrapped, and each device has a plan of its "
            "own: call memscale.detach(model), then memscale.wrap(model, ...) again"
        )


def name_on(model: torch.nn.Module, placement: Placement | None) -> str:
    """The name of the model's class, and of the device if the model lies on several."""
    name = type(model).__name__
    return name if placement is None else f"{name} on {placement.device}"


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor. A fake one is not asked through the dispatcher, whose modes would see the question."""
    fake: torch.device | None = getattr(tensor, "fake_device", None)
    return tensor.device if fake is None else fake


def _placed_layers(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module, torch.device | None]]:
    """The layers and the devices of their parameters; None for a layer with several. A layer without parameters
    computes on its predecessor's device."""
    placed: list[tuple[str, torch.nn.Module, torch.device | None]] = []
    before: torch.device | None = None
    for name, layer in find_layers(model):
        devices = {parameter.device for parameter in layer.parameters()}
        device = before if not devices else next(iter(devices)) if len(devices) == 1 else None
        placed.append((name, layer, device))
        before = device
    return placed
