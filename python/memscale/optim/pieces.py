"""Ranges of parameters' elements, in the order of memory: what an update on a GPU computes at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..base.divided import part_of

__all__ = ["Piece", "cut", "places_of"]


class Piece(NamedTuple):
    """A range of a parameter's elements, of this rank's part if it is divided."""

    p: torch.Tensor
    begin: int
    end: int


def cut(params: list[torch.Tensor], room: int) -> list[list[Piece]]:
    """The parameters cut into loads of at most `room` elements."""
    loads: list[list[Piece]] = [[]]
    left = room
    for p in params:
        begin, elements = 0, part_of(p).numel()
        while begin < elements:
            if left == 0:
                loads.append([])
                left = room
            end = min(begin + left, elements)
            loads[-1].append(Piece(p, begin, end))
            left -= end - begin
            begin = end
    return loads


def places_of(pieces: list[Piece]) -> list[slice]:
    """Each piece's elements in an array that holds all of them in a row."""
    places, at = [], 0
    for _, begin, end in pieces:
        places.append(slice(at, at + end - begin))
        at += end - begin
    return places
