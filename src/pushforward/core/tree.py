"""Pytrees with key paths: whatever torch's pytree knows, and every dataclass.

A leaf path is written as the user would index it: `args[1]['w']`, `args[0].lo`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as torch_tree

TreeSpec = torch_tree.TreeSpec
flatten = torch_tree.tree_flatten
tree_map = torch_tree.tree_map
is_registered = torch_tree.SUPPORTED_NODES.__contains__

_PLAIN_LEAVES = frozenset({int, float, bool, complex, str, bytes, type(None), torch.Tensor, torch.nn.Parameter})


def register_dataclasses(tree: Any) -> None:
    """Register the type of every dataclass instance in `tree` with torch's pytree, once per type."""
    kind = type(tree)
    if kind in _PLAIN_LEAVES or isinstance(tree, torch.Tensor):
        return
    if isinstance(tree, dict):
        for value in tree.values():
            register_dataclasses(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            register_dataclasses(value)
    elif dataclasses.is_dataclass(kind):
        fields = [f.name for f in dataclasses.fields(kind)]
        if not is_registered(kind):
            _register(kind, fields)
        for name in fields:
            register_dataclasses(getattr(tree, name, None))


def _register(kind: type, fields: list[str]) -> None:
    def take_apart(value: Any) -> tuple[list[Any], Any]:
        return [getattr(value, name) for name in fields], None

    def take_apart_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
        return [(torch_tree.GetAttrKey(name), getattr(value, name)) for name in fields], None

    def put_together(children: Any, _: Any) -> Any:
        made = object.__new__(kind)  # `__init__` may check or convert; a transform must not
        for name, child in zip(fields, children, strict=True):
            object.__setattr__(made, name, child)
        return made

    torch_tree.register_pytree_node(kind, take_apart, put_together, flatten_with_keys_fn=take_apart_with_keys)


LEAF: TreeSpec = flatten(0)[1]
_SPECS: dict[Any, TreeSpec] = {}  # of tuples, lists and dicts that were met
_MAKERS: dict[int, Callable[[list[Any]], Any]] = {}  # by identity of such a spec: the tree of its leaves


def signature(tree: Any, found: list[Any]) -> Any:
    """The structure of nested tuples, lists and dicts, with the leaves added to `found`; False for any other structure."""
    kind = type(tree)
    if kind in _PLAIN_LEAVES or isinstance(tree, torch.Tensor):
        found.append(tree)
        return None
    if kind is dict:
        if not all([type(key) is str for key in tree]):  # 1, 1.0 and True are equal
            return False
        parts: list[Any] = [dict, tuple(tree)]
        tree = tree.values()
    elif kind is tuple or kind is list:
        parts = [kind]
    else:
        return False
    for value in tree:
        part = signature(value, found)
        if part is False:
            return False
        parts.append(part)
    return tuple(parts)


def maker(structure: Any) -> Callable[[list[Any]], Any]:
    """What puts the leaves of such a structure together again."""
    keys: list[Any] = []
    count = 0

    def written(part: Any) -> str:
        nonlocal count
        if part is None:
            count += 1
            return f"v[{count - 1}]"
        if part[0] is dict:
            keys.append(part[1])
            place = len(keys) - 1
            inner = "".join(f"k[{place}][{j}]: {written(sub)}, " for j, sub in enumerate(part[2:]))
            return f"{{{inner}}}"
        inner = "".join(f"{written(sub)}, " for sub in part[1:])
        return f"[{inner}]" if part[0] is list else f"({inner})"

    source = written(structure)
    return eval(f"lambda v: {source}", {"k": keys})


def flat(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves and structure of `tree`; dataclasses are taken apart too."""
    found: list[Any] = []
    structure = signature(tree, found)
    if structure is None:
        return found, LEAF
    if structure is False:
        register_dataclasses(tree)
        return flatten(tree)
    spec = _SPECS.get(structure)
    if spec is None:
        spec = _SPECS[structure] = flatten(tree)[1]
        _MAKERS[id(spec)] = maker(structure)
    return found, spec


def unflatten(values: list[Any], spec: TreeSpec) -> Any:
    """The pytree of a structure, from its leaves."""
    if spec is LEAF:
        return values[0]
    make = _MAKERS.get(id(spec))
    return make(values) if make is not None else torch_tree.tree_unflatten(values, spec)


def flat_like(tree: Any, spec: TreeSpec, *, zeros: bool = False) -> list[Any] | None:
    """The leaves of `tree` in the order of a structure; None if it has another one.

    Keys of dicts may come in any order, and a list may stand for a tuple; with `zeros`, None may stand for any part.
    """
    found, own = flat(tree)
    if own is spec or own == spec:
        return found
    found, own = flat(arranged(tree, unflatten([None] * spec.num_leaves, spec), zeros))
    return found if own == spec else None


def arranged(tree: Any, like: Any, zeros: bool) -> Any:
    """`tree` with the keys of its dicts in the order that those of `like` have; `zeros`: None for a part of it is that of `like`."""
    if zeros and tree is None:
        return like
    if isinstance(like, dict):
        if not isinstance(tree, dict) or tree.keys() != like.keys():
            return tree
        if type(tree) is type(like) and type(like) is not dict:
            parts = copy.copy(tree)
            for key in like:
                parts[key] = arranged(parts.pop(key), like[key], zeros)
            return parts
        return {key: arranged(tree[key], like[key], zeros) for key in like} if type(like) is dict else tree
    if type(like) in (list, tuple):
        if type(tree) not in (list, tuple) or len(tree) != len(like):
            return tree
        return type(like)([arranged(a, b, zeros) for a, b in zip(tree, like, strict=True)])
    if isinstance(like, tuple) and type(tree) is type(like) and hasattr(like, "_fields"):
        return type(like)(*[arranged(a, b, zeros) for a, b in zip(tree, like, strict=True)])
    return tree


def words(spec: TreeSpec | None) -> str:
    """A structure for messages: `(*, {'w': *})`, each leaf a star."""
    if spec is None or spec is LEAF or spec == LEAF:
        return "a tensor"
    return repr(unflatten([_STAR] * spec.num_leaves, spec))


class _Star:
    def __repr__(self) -> str:
        return "*"


_STAR = _Star()


def leaves(tree: Any) -> list[Any]:
    """The leaves of `tree` in order."""
    return flat(tree)[0]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `function` applied to each leaf."""
    values, spec = flat(tree)
    return unflatten([function(v) for v in values], spec)


def paths(tree: Any, root: str) -> list[str]:
    """The path of each leaf of `tree`, written from `root`: `args[0]['w']`."""
    register_dataclasses(tree)
    found, _ = torch_tree.tree_flatten_with_path(tree)
    return [root + torch_tree.keystr(path) for path, _ in found]


def broadcast_prefix(prefix: Any, tree: Any, *, is_leaf: Callable[[Any], bool]) -> list[Any] | None:
    """One entry of `prefix` for each leaf of `tree`, or None where `prefix` is no prefix of it.

    `is_leaf` says which values of `prefix` stand for a whole subtree.
    """
    register_dataclasses(tree)
    if is_leaf(prefix):
        return [prefix] * len(flatten(tree)[0])
    pre, parts = _children(prefix), _children(tree)
    if pre is None or parts is None or len(parts) != len(pre) or not _same_node(prefix, tree):
        return None
    if isinstance(prefix, dict):
        if set(prefix) != set(tree):
            return None
        pre = [prefix[key] for key in tree]
    out: list[Any] = []
    for sub, part in zip(pre, parts, strict=True):
        below = broadcast_prefix(sub, part, is_leaf=is_leaf)
        if below is None:
            return None
        out += below
    return out


def _children(node: Any) -> list[Any] | None:
    """What a node holds, one level down; None for a leaf.

    `tree_flatten(node, is_leaf=...)` would do, but its closures form a cycle that keeps every tensor of the
    tree until the collector runs.
    """
    kind = torch_tree._get_node_type(node)
    found = torch_tree.SUPPORTED_NODES.get(kind)
    return None if found is None else list(found.flatten_fn(node)[0])


def _same_node(prefix: Any, tree: Any) -> bool:
    if isinstance(prefix, dict):
        return isinstance(tree, dict)
    if isinstance(prefix, (list, tuple)) and type(prefix) in (list, tuple):
        return isinstance(tree, (list, tuple)) and len(prefix) == len(tree)
    return type(prefix) is type(tree)
