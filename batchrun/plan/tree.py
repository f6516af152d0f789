"""Which beginnings of token sequences are worth computing once for all that share them.

Sorted, sequences that begin alike lie side by side, and how much neighbours have in common gives
the tree of all beginnings at which sequences part. Of these the cheapest set is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import numpy as np
import numpy.typing as npt

from batchrun.records import Prefix

# A prefix is this much longer than its parent, or it is none: a few tokens more are quickly
# computed, and dividing a group makes its attention over what all of it shares dearer.
MIN_TOKENS = 16

# What a prefix costs, in prompt tokens computed: a forward pass of its own over one short row,
# which reads all the weights, and a copy of the caches. Two rows must share more than this.
PREFIX_COST = 32

_ID_BYTES = array("q").itemsize
_Ints = npt.NDArray[np.int64]


def shared_prefixes(prompts: Sequence[list[int]]) -> list[Prefix | None]:
    """The longest prefix of each of `prompts`, or None; at least one token follows it.

    Chosen so that the tokens to compute are as few as can be, PREFIX_COST for each prefix counted
    in. Prompts that share one share the object.
    """
    # The last token is the first input of decoding: it is computed for each prompt anyway.
    keys = [array("q", token_ids[:-1]).tobytes() for token_ids in prompts]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    shared = [_common(keys[one], keys[other]) for one, other in pairwise(order)]
    nodes = _linked(_tree(shared))
    _weigh(nodes)
    chosen = _choose(nodes, [prompts[index] for index in order])
    by_index = dict(zip(order, chosen, strict=True))
    return [by_index[index] for index in range(len(prompts))]


@dataclass(slots=True, eq=False)
class _Node:
    """The sorted prompts from `start` up to `end` share their first `length` tokens, and with no
    others so many."""

    length: int
    start: int
    end: int = 0
    parent: _Node | None = None
    # How many of its prompts are in no child.
    num_direct: int = 0
    # How long the longest prefix may be for its prompts: 0, its ancestors' lengths, its own.
    lengths: _Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    # Whether to be a prefix is cheaper, where lengths[i] is that of the longest one above.
    pays: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    # Which of `lengths` it came to be.
    base: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start


def _common(one: bytes, other: bytes) -> int:
    """How many token ids two sequences begin with in common."""
    count = min(len(one), len(other)) // _ID_BYTES
    differ = np.frombuffer(one, np.int64, count) != np.frombuffer(other, np.int64, count)
    return int(differ.argmax()) if differ.any() else count


def _tree(shared: list[int]) -> list[_Node]:
    """The beginnings of at least MIN_TOKENS at which prompts part, children before parents.
    `shared[i]` is what the sorted prompts i and i + 1 have in common."""
    nodes: list[_Node] = []
    unfinished: list[_Node] = []
    for place, length in enumerate([*shared, 0]):
        start = place
        while unfinished and unfinished[-1].length > length:
            node = unfinished.pop()
            node.end, start = place + 1, node.start
            nodes.append(node)
        if length >= MIN_TOKENS and (not unfinished or unfinished[-1].length < length):
            unfinished.append(_Node(length, start))
    return nodes


def _linked(nodes: list[_Node]) -> list[_Node]:
    """The nodes linked to their parents, children first still, without those too near above."""
    linked: list[_Node] = []
    path: list[_Node] = []
    for node in reversed(nodes):
        while path and path[-1].start > node.start:
            path.pop()
        if _is_offshoot(node, path):
            continue
        if path:
            node.parent = path[-1]
            node.parent.num_direct -= node.size
            node.lengths = node.parent.lengths
        node.lengths = np.append(node.lengths, node.length)
        node.num_direct = node.size
        path.append(node)
        linked.append(node)
    return linked[::-1]


def _is_offshoot(node: _Node, path: list[_Node]) -> bool:
    """Whether it has at most half the prompts of one less than MIN_TOKENS above it. So a large
    group is not replaced by several that are each a token longer."""
    near = takewhile(lambda above: node.length - above.length < MIN_TOKENS, reversed(path))
    return any(above.size >= 2 * node.size for above in near)


def _weigh(nodes: list[_Node]) -> None:
    """Settle `pays`, from the leaves up. A prompt costs its length less its prefix's; of that only
    the latter can be chosen, so only it is counted."""
    costs: dict[_Node, _Ints] = {}
    for node in nodes:
        above = node.lengths[:-1]
        below = costs.pop(node, 0) - node.num_direct * node.lengths
        without = below[:-1]
        as_prefix = PREFIX_COST + node.length - above + below[-1]
        node.pays = (as_prefix < without) & (node.length - above >= MIN_TOKENS)
        if node.parent:
            cheapest = np.where(node.pays, as_prefix, without)
            costs[node.parent] = costs.get(node.parent, 0) + cheapest


def _choose(nodes: list[_Node], prompts: list[list[int]]) -> list[Prefix | None]:
    """The prefix of each of the sorted `prompts`, from the root down."""
    chosen: list[tuple[_Node, int]] = []
    numbers = np.zeros(len(prompts), np.int64)  # whose prefix is each prompt's; 0 is none
    for node in reversed(nodes):
        node.base = node.parent.base if node.parent else 0
        if node.pays[node.base]:
            node.base = len(node.lengths) - 1
            chosen.append((node, int(numbers[node.start])))
            numbers[node.start : node.end] = len(chosen)
    counts = np.bincount(numbers, minlength=len(chosen) + 1).tolist()
    prefixes: list[Prefix | None] = [None]
    for number, (node, parent) in enumerate(chosen, start=1):
        token_ids = prompts[node.start][: node.length]
        prefixes.append(Prefix(token_ids, counts[number], prefixes[parent]))
    return [prefixes[number] for number in numbers]
