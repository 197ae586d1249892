"""A dict of bounded size."""

from edge.lru import Lru


def test_forgets_the_longest_unused():
    """Getting a value counts as using it, peeking does not, and putting tells what is forgotten."""
    lru = Lru(2)
    assert lru.put("a", 1) is None
    assert lru.put("b", 2) is None
    lru.get("a")
    lru.peek("b")
    assert lru.put("c", 3) == ("b", 2)
    assert (lru.get("a"), lru.get("b"), lru.get("c")) == (1, None, 3)
    assert list(lru.values()) == [1, 3]


def test_forgets_what_it_is_told():
    """Dropping twice does no harm."""
    lru = Lru(2)
    lru.put("a", 1)
    lru.put("b", 2)
    assert lru.drop("a") == 1
    assert lru.drop("a") is None
    lru.clear()
    assert len(lru) == 0
