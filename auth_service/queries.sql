-- Every query of auth_service: its name, what it does, and the SQL up to the next name.

-- name: find_identities: Whom keys speak for, by any digests they may be stored under.
select
    keys.digest,
    accounts.id as account_id,
    keys.id as key_id,
    accounts.state as account_state,
    keys.revoked_at is not null as revoked,
    extract(epoch from keys.expires_at)::float8 as expires_at,
    accounts.cache_salt,
    keys.models,
    accounts.limits as account_limits,
    keys.limits as key_limits,
    account_month.tokens as account_month_tokens,
    key_month.tokens as key_month_tokens,
    key_event_counter.sequence
from keys
join accounts on accounts.id = keys.account_id
cross join key_event_counter
cross join lateral (
    select coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint as tokens
    from usage_days
    where
        usage_days.account_id = keys.account_id
        and usage_days.key_id = ''
        and day >= date_trunc('month', now() at time zone 'UTC')::date
) as account_month
cross join lateral (
    select coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint as tokens
    from usage_days
    where
        usage_days.account_id = keys.account_id
        and usage_days.key_id = keys.id
        and day >= date_trunc('month', now() at time zone 'UTC')::date
) as key_month
where keys.digest = any($1::bytea[]);

-- name: create_account: Makes a pending account; no row if the name is taken.
insert into accounts (id, name, cache_salt)
values ($1, $2, $3)
on conflict (name) do nothing
returning id, name, state, limits, extract(epoch from created_at)::float8 as created_at;

-- name: find_account: The account of that id or name; an id is never a name.
select id, name, state, limits, extract(epoch from created_at)::float8 as created_at
from accounts
where id = $1 or name = $1;

-- name: lock_account: The same, held until the end of the transaction.
select id, name, state, limits, extract(epoch from created_at)::float8 as created_at
from accounts
where id = $1 or name = $1
for no key update;

-- name: set_account_state: What the state of a locked account becomes.
update accounts
set state = $2
where id = $1;

-- name: set_account_limits: What the limits of a locked account become.
update accounts
set limits = $2::jsonb
where id = $1;

-- name: list_accounts: Accounts in one state or, without a state, all; newest first.
select id, name, state, limits, extract(epoch from created_at)::float8 as created_at
from accounts
where $1::text is null or state = $1
order by accounts.created_at desc, id;

-- name: issue_key: Registers a key; nothing if it is registered already.
insert into keys (id, account_id, name, prefix, digest, pepper_id, expires_at, models, limits)
values ($1, $2, $3, $4, $5, $6, to_timestamp($7::float8), $8::text[], $9::jsonb)
on conflict (digest) do nothing;

-- name: find_key: The key registered under any of the digests.
select
    id,
    account_id,
    name,
    prefix,
    revoked_at is not null as revoked,
    extract(epoch from created_at)::float8 as created_at,
    extract(epoch from expires_at)::float8 as expires_at,
    extract(epoch from last_used_at)::float8 as last_used_at,
    pepper_id,
    models,
    limits,
    replaced_by,
    coalesce(expires_at <= now(), false) as expired
from keys
where digest = any($1::bytea[]);

-- name: find_account_of_key: Whose key that is.
select account_id
from keys
where id = $1;

-- name: lock_key: The key of that id, held until the end of the transaction.
select
    id,
    account_id,
    name,
    prefix,
    revoked_at is not null as revoked,
    extract(epoch from created_at)::float8 as created_at,
    extract(epoch from expires_at)::float8 as expires_at,
    extract(epoch from last_used_at)::float8 as last_used_at,
    pepper_id,
    models,
    limits,
    replaced_by,
    coalesce(expires_at <= now(), false) as expired
from keys
where id = $1
for no key update;

-- name: revoke_key: Ends a locked key.
update keys
set revoked_at = now()
where id = $1;

-- name: revoke_keys_of_account: Ends all keys of a locked account that have not ended.
update keys
set revoked_at = now()
where account_id = $1 and revoked_at is null
returning id;

-- name: replace_key: Lets a locked key go on for some seconds, and says which one replaces it.
update keys
set
    replaced_by = $2,
    revoked_at = case when $3::float8 <= 0 then now() end,
    expires_at = case
        when $3::float8 <= 0 then expires_at
        else least(expires_at, now() + make_interval(secs => $3::float8))
    end
where id = $1
returning extract(epoch from expires_at)::float8 as expires_at;

-- name: set_key_limits: What the limits of a locked key become.
update keys
set limits = $2::jsonb
where id = $1;

-- name: note_keys_used: When keys were last used, to the minute; a key that somebody changes is left out.
with used as (
    select id, date_trunc('minute', to_timestamp(max(at))) as at
    from unnest($1::text[], $2::float8[]) as each (id, at)
    group by id
),
stale as (
    select keys.id, used.at
    from keys
    join used on used.id = keys.id
    where keys.last_used_at is null or keys.last_used_at < used.at
    order by keys.id
    for no key update of keys skip locked
)
update keys
set last_used_at = stale.at
from stale
where keys.id = stale.id;

-- name: list_keys: The newest keys of all accounts, at most so many; newest first.
select
    id,
    account_id,
    name,
    prefix,
    revoked_at is not null as revoked,
    extract(epoch from created_at)::float8 as created_at,
    extract(epoch from expires_at)::float8 as expires_at,
    extract(epoch from last_used_at)::float8 as last_used_at,
    pepper_id,
    models,
    limits
from keys
order by keys.created_at desc, id
limit $1;

-- name: list_keys_of_account: The keys of one account; newest first.
select
    id,
    account_id,
    name,
    prefix,
    revoked_at is not null as revoked,
    extract(epoch from created_at)::float8 as created_at,
    extract(epoch from expires_at)::float8 as expires_at,
    extract(epoch from last_used_at)::float8 as last_used_at,
    pepper_id,
    models,
    limits
from keys
where account_id = $1
order by keys.created_at desc, id;

-- name: add_audit_record: Who changed what, within the transaction of the change.
insert into audit (actor, action, account_id, key_id, change)
values ($1, $2, $3, $4, $5::jsonb);

-- name: list_audit: The newest changes, at most so many; newest first.
select number, extract(epoch from at)::float8 as at, actor, action, account_id, key_id, change
from audit
order by number desc
limit $1;

-- name: list_audit_of_account: The newest changes of an account and its keys; newest first.
select number, extract(epoch from at)::float8 as at, actor, action, account_id, key_id, change
from audit
where account_id = $1
order by number desc
limit $2;

-- name: key_events_after: A page of the events after a sequence, and the last sequence that there is; one row without an event if there is none.
select
    key_event_counter.sequence as last_sequence,
    page.sequence,
    page.account_id,
    page.key_id,
    page.account_state,
    page.revoked
from key_event_counter
left join lateral (
    select sequence, account_id, key_id, account_state, revoked
    from key_events
    where sequence > $1
    order by sequence
    limit $2
) as page on true
order by page.sequence;

-- name: prune_key_events: Forgets all events but so many of the newest.
delete from key_events
where sequence <= (select sequence from key_event_counter) - $1;

-- name: add_usage_records: Takes the records whose requests are not known yet, and says which these are.
insert into usage_records (
    request_id,
    account_id,
    key_id,
    model,
    worker_id,
    prompt_tokens,
    cached_tokens,
    completion_tokens,
    reasoning_tokens,
    first_token_ms,
    duration_ms,
    finish,
    status,
    started_at
)
select
    request_id,
    account_id,
    key_id,
    model,
    worker_id,
    prompt_tokens,
    cached_tokens,
    completion_tokens,
    reasoning_tokens,
    first_token_ms,
    duration_ms,
    finish,
    status,
    to_timestamp(started_at)
from unnest(
    $1::text[],
    $2::text[],
    $3::text[],
    $4::text[],
    $5::text[],
    $6::bigint[],
    $7::bigint[],
    $8::bigint[],
    $9::bigint[],
    $10::bigint[],
    $11::bigint[],
    $12::text[],
    $13::text[],
    $14::float8[]
) as each (
    request_id,
    account_id,
    key_id,
    model,
    worker_id,
    prompt_tokens,
    cached_tokens,
    completion_tokens,
    reasoning_tokens,
    first_token_ms,
    duration_ms,
    finish,
    status,
    started_at
)
-- All take rows in one order, so that two batches with the same requests never wait for each other.
order by request_id
on conflict (request_id) do nothing
returning request_id;

-- name: add_to_usage_days: Adds records to the sums of their days, in one order as well.
insert into usage_days (
    account_id,
    key_id,
    day,
    model,
    requests,
    prompt_tokens,
    cached_tokens,
    completion_tokens,
    reasoning_tokens,
    lost_requests,
    cost_picos
)
select
    account_id,
    coalesce(key_id, '') as key_id,
    day,
    model,
    count(*),
    sum(prompt_tokens),
    sum(cached_tokens),
    sum(completion_tokens),
    sum(reasoning_tokens),
    count(*) filter (where lost),
    sum(cost_picos)
from usage_record_costs
where request_id = any($1::text[])
group by grouping sets ((account_id, day, model), (account_id, key_id, day, model))
order by account_id, coalesce(key_id, ''), day, model
on conflict (account_id, key_id, day, model) do update
set
    requests = usage_days.requests + excluded.requests,
    prompt_tokens = usage_days.prompt_tokens + excluded.prompt_tokens,
    cached_tokens = usage_days.cached_tokens + excluded.cached_tokens,
    completion_tokens = usage_days.completion_tokens + excluded.completion_tokens,
    reasoning_tokens = usage_days.reasoning_tokens + excluded.reasoning_tokens,
    lost_requests = usage_days.lost_requests + excluded.lost_requests,
    cost_picos = coalesce(
        usage_days.cost_picos + excluded.cost_picos, usage_days.cost_picos, excluded.cost_picos
    );

-- name: lock_usage_days: Lets nobody else add to the sums until the end of the transaction.
lock table usage_days in share row exclusive mode;

-- name: recompute_usage_day: Computes the sums of a day anew from its records, and says how many are different now.
with fresh as (
    select
        account_id,
        coalesce(key_id, '') as key_id,
        day,
        model,
        count(*) as requests,
        sum(prompt_tokens) as prompt_tokens,
        sum(cached_tokens) as cached_tokens,
        sum(completion_tokens) as completion_tokens,
        sum(reasoning_tokens) as reasoning_tokens,
        count(*) filter (where lost) as lost_requests,
        sum(cost_picos) as cost_picos
    from usage_record_costs
    where
        started_at >= $1::date::timestamp at time zone 'UTC'
        and started_at < ($1::date + 1)::timestamp at time zone 'UTC'
    group by grouping sets ((account_id, day, model), (account_id, key_id, day, model))
),
gone as (
    delete from usage_days
    where
        day = $1
        and not exists (
            select from fresh
            where
                fresh.account_id = usage_days.account_id
                and fresh.key_id = usage_days.key_id
                and fresh.model = usage_days.model
        )
    returning 1
),
changed as (
    insert into usage_days (
        account_id,
        key_id,
        day,
        model,
        requests,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        reasoning_tokens,
        lost_requests,
        cost_picos
    )
    select
        account_id,
        key_id,
        day,
        model,
        requests,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        reasoning_tokens,
        lost_requests,
        cost_picos
    from fresh
    -- As the index has them, so that each of its pages is read once.
    order by account_id, key_id, model
    on conflict (account_id, key_id, day, model) do update
    set
        requests = excluded.requests,
        prompt_tokens = excluded.prompt_tokens,
        cached_tokens = excluded.cached_tokens,
        completion_tokens = excluded.completion_tokens,
        reasoning_tokens = excluded.reasoning_tokens,
        lost_requests = excluded.lost_requests,
        cost_picos = excluded.cost_picos
    where (usage_days.*) is distinct from (excluded.*)
    returning 1
)
select (select count(*) from gone) + (select count(*) from changed);

-- name: usage_of_account: What an account or one of its keys used on days, of all models or of one; by day, then by model.
select
    day,
    account_id,
    model,
    requests,
    prompt_tokens,
    cached_tokens,
    completion_tokens,
    reasoning_tokens,
    lost_requests,
    round(cost_picos / 1000000)::bigint as cost_micros
from usage_days
where
    account_id = $1
    and key_id = $2
    and day between $3 and $4
    and ($5::text is null or model = $5)
order by day, model
limit $6;

-- name: usage_of_all: A page of what all accounts used on days, of all models or of one; by day, then by account, then by model.
select
    day,
    account_id,
    model,
    requests,
    prompt_tokens,
    cached_tokens,
    completion_tokens,
    reasoning_tokens,
    lost_requests,
    round(cost_picos / 1000000)::bigint as cost_micros
from usage_days
where
    key_id = ''
    and day between $1 and $2
    and ($3::text is null or model = $3)
    and (day, account_id, model) > ($4, $5, $6)
order by day, account_id, model
limit $7;

-- name: find_price: The current price of a model.
select
    model,
    prompt_micros,
    cached_micros,
    completion_micros,
    extract(epoch from valid_from)::float8 as valid_from
from prices
where model = $1
order by prices.valid_from desc
limit 1;

-- name: add_price: A price from now on.
insert into prices (model, valid_from, prompt_micros, cached_micros, completion_micros)
values ($1, clock_timestamp(), $2, $3, $4)
returning
    model,
    prompt_micros,
    cached_micros,
    completion_micros,
    extract(epoch from valid_from)::float8 as valid_from;

-- name: list_prices: The current price of every model that has one, by model.
select distinct on (model)
    model,
    prompt_micros,
    cached_micros,
    completion_micros,
    extract(epoch from valid_from)::float8 as valid_from
from prices
order by model, prices.valid_from desc;

-- name: add_worker_token: Registers a token for so many seconds; nothing if it is registered already.
insert into worker_tokens (sha256, worker_id, expires_at)
values ($1, $2, now() + make_interval(secs => $3::float8))
on conflict (sha256) do nothing
returning true;

-- name: find_worker_token: When a token ends.
select extract(epoch from expires_at)::float8 as expires_at
from worker_tokens
where sha256 = $1;

-- name: forget_worker_tokens: Forgets the tokens that ended more than a month ago.
delete from worker_tokens
where expires_at < now() - interval '30 days';

-- name: lock_worker_token: What is known of a token, held until the end of the transaction.
select worker_id, used_by, used_key_sha256, expires_at <= now() as expired
from worker_tokens
where sha256 = $1
for no key update;

-- name: use_worker_token: Who has joined by a locked token.
update worker_tokens
set used_by = $2, used_key_sha256 = $3
where sha256 = $1;

-- name: add_joined_worker: Makes a row for a name, already ended, so that it can be locked.
insert into joined_workers (worker_id, key_sha256, expires_at)
values ($1, $2, '-infinity')
on conflict (worker_id) do nothing;

-- name: lock_joined_worker: Who has the certificate of a name, held until the end of the transaction.
select key_sha256, expires_at > now() as valid
from joined_workers
where worker_id = $1
for no key update;

-- name: set_joined_worker: Who has the certificate of a locked name from now on.
update joined_workers
set key_sha256 = $2, expires_at = to_timestamp($3::float8)
where worker_id = $1;

-- name: list_peppers: The fingerprints of the peppers that keys are stored with.
select id, fingerprint from peppers;

-- name: count_keys_of_peppers: How many keys that have not ended are stored with any of these.
select count(*)
from keys
where pepper_id = any($1::smallint[]) and revoked_at is null and coalesce(expires_at > now(), true);

-- name: record_pepper: That of the first key is that of all.
insert into peppers (id, fingerprint)
values ($1, $2)
on conflict (id) do nothing;

-- name: record_pepper_of_old_keys: The same for keys that are older than this record.
insert into peppers (id, fingerprint)
select $1::smallint, $2::bytea
where exists (select from keys where pepper_id = $1)
on conflict (id) do nothing;

-- name: inspect: What a look from outside tells of the database.
select
    extract(epoch from clock_timestamp())::float8 as now,
    current_setting('transaction_read_only')::boolean as read_only;
