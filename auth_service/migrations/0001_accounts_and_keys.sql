-- Accounts, and the API keys that speak for them.

create table accounts (
    id text collate "C" primary key,
    name text not null unique,
    state text not null default 'pending',
    -- Keeps one account's prefix cache from another's. Not secret from our own services.
    cache_salt text not null,
    created_at timestamptz not null default now(),
    constraint accounts_state_is_known check (state in ('pending', 'approved', 'suspended'))
);

create table keys (
    id text collate "C" primary key,
    account_id text collate "C" not null references accounts (id),
    name text not null,
    -- The key's first characters, to tell keys apart.
    prefix text not null,
    -- HMAC-SHA-256 of the key's SHA-256 with the pepper of that id: useless without the pepper.
    digest bytea not null unique,
    -- One number per rotated pepper: smallint is plenty.
    -- squawk-ignore prefer-bigint-over-smallint
    pepper_id smallint not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    constraint keys_digest_is_sha256 check (octet_length(digest) = 32)
);

create index keys_of_account on keys (account_id, created_at desc);
