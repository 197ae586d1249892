"""The auth service with a login that owns nothing, as the security page shows."""

import re
from pathlib import Path
from random import Random
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from auth_stores import new_key, open_stores

from auth_service.limits import Limits
from fastrun.service import api_key

PAGE = Path(__file__).parents[3] / "docs" / "operating" / "security.md"
RANDOM = Random(6)


@pytest.fixture
async def own_login(stores, postgres):
    """Stores that connect with the page's login; the login is gone afterwards."""
    (statements,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    owner = await asyncpg.connect(stores.dsn)
    await owner.execute(statements)
    where = urlsplit(stores.dsn)
    netloc = f"fastrun_auth:CHANGE-ME@{where.hostname}:{where.port}"
    login = await open_stores(urlunsplit(where._replace(netloc=netloc)), random=Random(1))
    yield login
    await login.close()
    await owner.execute("drop owned by fastrun_auth; drop role fastrun_auth")
    await owner.close()


async def test_works(own_login):
    """Everything that the service does it can do with that login."""
    key, fresh = api_key.generate(RANDOM), api_key.generate(RANDOM)
    await own_login.accounts.create("one")
    await own_login.accounts.approve("one")
    await own_login.accounts.set_limits("one", Limits(5))
    old = await own_login.keys.issue("one", new_key(key))
    await own_login.keys.set_limits(old.key_id, Limits(5))
    new = await own_login.keys.rotate(old.key_id, new_key(fresh), 0)
    assert (await own_login.verify(fresh)).key_id == new.key_id
    await own_login.accounts.close("one")
    assert len(await own_login.audit.list()) == 8
    await own_login.ask(own_login.database.sql["prune_key_events"], 1)
    (row,) = await own_login.ask("select count(*) from key_events")
    assert row["count"] == 1


@pytest.mark.parametrize(
    "statement",
    [
        "update audit set actor = 'nobody'",
        "delete from audit",
        "truncate audit",
        "alter table audit disable trigger audit_is_append_only",
        "drop table audit",
        "set session_replication_role = replica",
        "update schema_migrations set sha256 = ''",
    ],
)
async def test_holds(own_login, statement):
    """With that login nobody can change the audit, nor what protects it."""
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await own_login.ask(statement)
