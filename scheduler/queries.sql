-- Every query of the scheduler: its name, what it does, and the SQL up to the next name.

-- name: hold_leadership: Renews the row of its holder or takes one that has ended; tells whose it is.
with held as (
    update scheduler_leader
    set
        term = case when holder = $1 and term >= $2 then term else greatest(term + 1, $2) end,
        holder = $1,
        expires_at = clock_timestamp() + $4 * interval '1 second'
    where
        holder = $1
        -- Given up, or not renewed in time by one who could have done so.
        or expires_at = to_timestamp(0)
        or (expires_at <= clock_timestamp() and clock_timestamp() <= $5::timestamptz)
    returning term
),

row_now as (
    select
        term,
        true as ours,
        $4::float8 as left_s
    from held
    union all
    select
        term,
        false as ours,
        extract(epoch from expires_at - clock_timestamp())::float8 as left_s
    from scheduler_leader
    where not exists (select from held)
)

select
    term,
    ours,
    left_s,
    clock_timestamp() as told_at,
    -- Who goes on leading knows them.
    case when not ours or term <> $3 then (
        select coalesce(jsonb_agg(card), '[]'::jsonb) from known_models
    ) end as cards
from row_now;

-- name: release_leadership: Lets another scheduler take the row at once.
update scheduler_leader
set expires_at = to_timestamp(0)
where holder = $1;

-- name: remember_models: Keeps what is known of models, while the row is ours.
insert into known_models (model, card)
select
    model,
    card
from unnest($3::text [], $4::jsonb []) as served (model, card)
where exists (select from scheduler_leader where holder = $1 and term = $2)
on conflict (model) do update set card = excluded.card
where known_models.card is distinct from excluded.card;

-- name: forget_model: Forgets a model, while the row is ours; tells whether it is.
with mine as (
    select term from scheduler_leader
    where holder = $1 and term = $2
),

forgotten as (
    delete from known_models
    where model = $3 and exists (select from mine)
)

select exists (select from mine);
