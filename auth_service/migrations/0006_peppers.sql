-- Which peppers keys are stored with, so that a wrong one is seen before it refuses everybody.

create table peppers (
    -- As in keys.pepper_id.
    -- squawk-ignore prefer-bigint-over-smallint
    id smallint primary key,
    -- HMAC-SHA-256 of a fixed text with the pepper, which cannot be found out from it.
    fingerprint bytea not null,
    constraint peppers_fingerprint_is_sha256 check (octet_length(fingerprint) = 32)
);
