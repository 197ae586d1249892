-- Every query of auth_service: its name, what it does, and the SQL up to the next name.

-- name: find_identity: Whom a key speaks for, by any digest it may be stored under.
select
    accounts.id as account_id,
    keys.id as key_id,
    accounts.state as account_state,
    keys.revoked_at is not null as revoked,
    extract(epoch from keys.expires_at)::float8 as expires_at,
    accounts.cache_salt
from keys
join accounts on accounts.id = keys.account_id
where keys.digest = any($1::bytea[]);

-- name: create_account: Makes a pending account; no row if the name is taken.
insert into accounts (id, name, cache_salt)
values ($1, $2, $3)
on conflict (name) do nothing
returning id, name, state, extract(epoch from created_at)::float8 as created_at;

-- name: find_account: The account of that id or name; an id is never a name.
select id, name, state, extract(epoch from created_at)::float8 as created_at
from accounts
where id = $1 or name = $1;

-- name: lock_account: The same, held until the end of the transaction.
select id, name, state, extract(epoch from created_at)::float8 as created_at
from accounts
where id = $1 or name = $1
for update;

-- name: set_account_state: What the state of a locked account becomes.
update accounts
set state = $2
where id = $1;

-- name: list_accounts: Accounts in one state or, without a state, all; newest first.
select id, name, state, extract(epoch from created_at)::float8 as created_at
from accounts
where $1::text is null or state = $1
order by accounts.created_at desc, id;

-- name: issue_key: Registers a key; no row if it is registered already.
insert into keys (id, account_id, name, prefix, digest, pepper_id, expires_at)
values ($1, $2, $3, $4, $5, $6, to_timestamp($7::float8))
on conflict (digest) do nothing
returning
    id,
    account_id,
    name,
    prefix,
    revoked_at is not null as revoked,
    extract(epoch from created_at)::float8 as created_at,
    extract(epoch from expires_at)::float8 as expires_at;

-- name: find_key: The key registered under any of the digests.
select
    id,
    account_id,
    name,
    prefix,
    revoked_at is not null as revoked,
    extract(epoch from created_at)::float8 as created_at,
    extract(epoch from expires_at)::float8 as expires_at
from keys
where digest = any($1::bytea[]);

-- name: revoke_key: Ends a key; a second time changes nothing.
update keys
set revoked_at = coalesce(revoked_at, now())
where id = $1
returning
    id,
    account_id,
    name,
    prefix,
    revoked_at is not null as revoked,
    extract(epoch from created_at)::float8 as created_at,
    extract(epoch from expires_at)::float8 as expires_at;

-- name: list_keys: The keys of one account or, without an account, of all; newest first.
select
    id,
    account_id,
    name,
    prefix,
    revoked_at is not null as revoked,
    extract(epoch from created_at)::float8 as created_at,
    extract(epoch from expires_at)::float8 as expires_at
from keys
where $1::text is null or account_id = $1
order by keys.created_at desc, id;
