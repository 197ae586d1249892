"""Each query that runs for requests or over large tables reads by an index, as the planner decides."""

import asyncpg

from auth_service import queries

COUNT = 10_000

FILL = f"""
set session_replication_role = replica;  -- no events
insert into accounts (id, name, cache_salt, state)
select 'acct_' || n, 'account ' || n, 'salt', 'approved' from generate_series(1, {COUNT}) as n;
insert into keys (id, account_id, name, prefix, digest, pepper_id)
select 'key_' || n, 'acct_' || n, '', 'fr_', sha256(n::text::bytea), 1
from generate_series(1, {COUNT}) as n;
insert into audit (actor, action, account_id, key_id)
select 'operator/ada', 'key_issued', account_id, id from keys;
insert into key_events (sequence, account_id, key_id, account_state, revoked)
select n, 'acct_' || n, 'key_' || n, 'approved', false from generate_series(1, {COUNT}) as n;
update key_event_counter set sequence = {COUNT};
analyze;
"""

LARGE = {"accounts", "keys", "audit", "key_events"}
DIGEST = b"0" * 32

HOT = [
    ("find_identities", [[DIGEST] * 16], {"keys_digest_key", "accounts_pkey"}),
    ("find_identities", [[DIGEST]], {"keys_digest_key", "accounts_pkey"}),
    ("find_key", [[DIGEST]], {"keys_digest_key"}),
    ("find_account_of_key", ["key_7"], {"keys_pkey"}),
    ("lock_key", ["key_7"], {"keys_pkey"}),
    ("find_account", ["account 7"], {"accounts_pkey", "accounts_name_key"}),
    ("lock_account", ["acct_7"], {"accounts_pkey", "accounts_name_key"}),
    ("list_keys_of_account", ["acct_7"], {"keys_of_account"}),
    ("revoke_keys_of_account", ["acct_7"], {"keys_of_account"}),
    ("note_keys_used", [["key_7"], [600.0]], {"keys_pkey"}),
    ("list_audit", [100], {"audit_pkey"}),
    ("list_audit_of_account", ["acct_7", 100], {"audit_of_account"}),
    ("key_events_after", [COUNT - 5, 1000], {"key_events_pkey"}),
]


async def test_reads_by_index(database):
    """No large table is read as a whole, neither by a plan for these values nor by a general one."""
    connection = await asyncpg.connect(database)
    await connection.execute(FILL)
    for mode in ("force_custom_plan", "force_generic_plan"):
        await connection.execute(f"set plan_cache_mode = {mode}")
        for name, args, indexes in HOT:
            statement = await connection.prepare(queries.load()[name])
            (plan,) = await statement.explain(*args)
            assert not scanned(plan["Plan"]) & LARGE, f"{name}, {mode}"
            assert indexes <= indexes_of(plan["Plan"]), f"{name}, {mode}"
    await connection.close()


def nodes(node):
    """A node of a plan and all below it."""
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


def indexes_of(plan):
    """The indexes that a plan reads."""
    return {node["Index Name"] for node in nodes(plan) if "Index Name" in node}


def scanned(plan):
    """The tables that a plan reads as a whole."""
    return {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
