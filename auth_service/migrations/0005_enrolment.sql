-- Tokens by which machines join as workers, and whose keys have certificates.

create table worker_tokens (
    -- Of the token's secret part.
    sha256 bytea primary key,
    -- The only worker that it is for; null: any name that is free.
    worker_id text collate "C",
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    -- Who used it, and SHA-256 of that key; null: nobody yet.
    used_by text collate "C",
    used_key_sha256 bytea
);

create index worker_tokens_by_end on worker_tokens (expires_at);

create table joined_workers (
    worker_id text collate "C" primary key,
    -- SHA-256 of the public key that the certificate of this name is for.
    key_sha256 bytea not null,
    -- When the last certificate ends.
    expires_at timestamptz not null
);
