

def test_trees_of_plain_containers_are_put_together_as_they_were():
    import torch
    from torch.utils._pytree import tree_flatten

    from pushforward.core import tree

    x = torch.ones(2)
    trees = [(), [], {}, (x,), [1, [None, ("s",)]], {"a": {"b": ()}, "c": x}, ((), []), {1: x}, {1.0: x}, {True: x}, {"a": {2: x}}]
    for _ in range(2):
        for value in trees:
            leaves, spec = tree.flat(value)
            expected, expected_spec = tree_flatten(value)
            assert spec == expected_spec
            assert all(a is b for a, b in zip(leaves, expected, strict=True))
            made = tree.unflatten(list(leaves), spec)
            assert repr(made) == repr(value)
            assert made is not value or not isinstance(value, (list, dict))
