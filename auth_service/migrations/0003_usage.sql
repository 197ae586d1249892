-- What requests have used, what it cost, and the sums of each day.

-- Facts: never updated, and no foreign keys, so that whatever an edge has served can be recorded.
-- Not partitioned: that a request counts once is a rule of the whole table, which Postgres keeps only
-- where the partition is part of the key. Nothing that is asked often reads it: see usage_days.
create table usage_records (
    request_id text collate "C" primary key,
    account_id text collate "C" not null,
    key_id text collate "C" not null,
    model text collate "C" not null,
    worker_id text not null,
    -- Null: nobody knows.
    prompt_tokens bigint,
    cached_tokens bigint,
    completion_tokens bigint,
    reasoning_tokens bigint,
    first_token_ms bigint,
    duration_ms bigint,
    finish text not null,
    status text not null,
    started_at timestamptz not null,
    recorded_at timestamptz not null default now(),
    constraint usage_records_status_is_known
    check (status in ('completed', 'cancelled', 'failed', 'partial', 'lost'))
);

-- To sum a day anew. Records come nearly in the order of time, so that this suffices, and costs
-- nothing when they are written.
create index usage_records_by_time on usage_records
using brin (started_at) with (pages_per_range = 32, autosummarize = on);

-- Never updated: a request costs what was the price when it came.
create table prices (
    model text collate "C" not null,
    valid_from timestamptz not null,
    -- In millionths of the currency's unit for a million tokens.
    prompt_micros bigint not null,
    cached_micros bigint not null,
    completion_micros bigint not null,
    primary key (model, valid_from),
    constraint prices_are_not_negative
    check (prompt_micros >= 0 and cached_micros >= 0 and completion_micros >= 0)
);

-- What accounts have used of models on days in UTC: of each key, and of all keys where key_id is empty.
-- Room is left in each page, for today's rows are updated again and again.
create table usage_days (
    account_id text collate "C" not null,
    key_id text collate "C" not null,
    day date not null,
    model text collate "C" not null,
    requests bigint not null,
    prompt_tokens bigint not null,
    cached_tokens bigint not null,
    completion_tokens bigint not null,
    reasoning_tokens bigint not null,
    -- Of requests whose counts nobody knows.
    lost_requests bigint not null,
    -- In millionths of millionths of the currency's unit, exact; null: no price was set.
    cost_picos numeric,
    primary key (account_id, key_id, day, model)
) with (fillfactor = 80);

create index usage_days_of_all on usage_days (day, account_id, model) where key_id = '';
-- To find all sums of a day that is summed anew.
create index usage_days_by_day on usage_days using brin (day) with (pages_per_range = 32);

-- What each record adds to the sums. A price in micros for a million tokens is one in picos for one.
create view usage_record_costs as
select
    usage_records.request_id,
    usage_records.started_at,
    usage_records.account_id,
    usage_records.key_id,
    usage_records.model,
    (usage_records.started_at at time zone 'UTC')::date as day,
    counts.prompt_tokens,
    counts.cached_tokens,
    counts.completion_tokens,
    counts.reasoning_tokens,
    usage_records.prompt_tokens is null and usage_records.completion_tokens is null as lost,
    greatest(counts.prompt_tokens - counts.cached_tokens, 0)::numeric * price.prompt_micros
    + counts.cached_tokens::numeric * price.cached_micros
    + counts.completion_tokens::numeric * price.completion_micros as cost_picos
from usage_records
cross join lateral (
    select
        coalesce(usage_records.prompt_tokens, 0) as prompt_tokens,
        coalesce(usage_records.cached_tokens, 0) as cached_tokens,
        coalesce(usage_records.completion_tokens, 0) as completion_tokens,
        coalesce(usage_records.reasoning_tokens, 0) as reasoning_tokens
) as counts
left join lateral (
    select prices.prompt_micros, prices.cached_micros, prices.completion_micros
    from prices
    where prices.model = usage_records.model and prices.valid_from <= usage_records.started_at
    order by prices.valid_from desc
    limit 1
) as price on true;
