from auth_service.audit import difference


def test_difference():
    """A change says of each field that is new what it was and what it became."""
    before = {"state": "pending", "name": "a"}
    assert difference(before, {"state": "approved", "name": "a"}) == {
        "state": {"from": "pending", "to": "approved"}
    }
    assert difference({}, {"name": "a", "expires_at": None}) == {"name": {"from": None, "to": "a"}}
    assert difference(before, before) == {}
