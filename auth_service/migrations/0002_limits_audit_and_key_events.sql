-- Closed accounts, limits, models per key, rotation; who changed what; and what edges are told of it.

-- Wider, and not valid because the rows from before met the narrower one.
-- squawk-ignore ban-drop-constraint
alter table accounts drop constraint accounts_state_is_known;
alter table accounts add constraint accounts_state_is_known
check (state in ('pending', 'approved', 'suspended', 'closed')) not valid;

-- Limits are read and replaced as a whole, and never searched: one object, without what is unlimited.
alter table accounts add column limits jsonb not null default '{}';
alter table keys add column limits jsonb not null default '{}';
-- The models that a key may use; empty: all.
alter table keys add column models text [] not null default '{}';
-- To the minute.
alter table keys add column last_used_at timestamptz;
-- The key that was issued in place of this one. No foreign key: keys are never deleted.
alter table keys add column replaced_by text collate "C";

create table audit (
    number bigint generated always as identity primary key,
    at timestamptz not null default now(),
    -- Whose certificate made the change, such as operator/alice.
    actor text not null,
    action text not null,
    account_id text collate "C",
    key_id text collate "C",
    -- What it was and what it became.
    change jsonb not null default '{}'
);

create index audit_of_account on audit (account_id, number desc);

create function refuse_audit_change() returns trigger language plpgsql as $$
begin
    raise exception 'the audit is append-only' using errcode = 'insufficient_privilege';
end
$$;

create trigger audit_is_append_only before update or delete or truncate on audit
for each statement execute function refuse_audit_change();
-- Also in sessions that turn ordinary triggers off.
alter table audit enable always trigger audit_is_append_only;

-- The last event's number, in the one row that every transaction with an event updates: so numbers
-- have no gaps, and their order is the order of the commits.
create table key_event_counter (
    only_row boolean primary key default true,
    sequence bigint not null,
    constraint key_event_counter_has_one_row check (only_row)
);
insert into key_event_counter (sequence) values (0);

create table key_events (
    sequence bigint primary key,
    account_id text collate "C" not null,
    -- Null: all keys of the account.
    key_id text collate "C",
    account_state text not null,
    -- Of key_id: whether it is revoked.
    revoked boolean
);

-- Runs at the end of a transaction, so that the counter is held for the commit alone, and never while
-- anybody waits for another row. What it reads after it has the counter, all earlier events have seen.
create function add_key_event() returns trigger language plpgsql as $$
declare
    latest bigint;
begin
    update key_event_counter set sequence = sequence + 1 returning sequence into latest;
    if tg_table_name = 'keys' then
        insert into key_events (sequence, account_id, key_id, account_state, revoked)
        select latest, keys.account_id, keys.id, accounts.state, keys.revoked_at is not null
        from keys join accounts on accounts.id = keys.account_id
        where keys.id = new.id;
    else
        insert into key_events (sequence, account_id, account_state)
        select latest, accounts.id, accounts.state from accounts where accounts.id = new.id;
    end if;
    perform pg_notify('fastrun_key_events', latest::text);
    return null;
end
$$;

create constraint trigger account_changed after update on accounts
deferrable initially deferred for each row
when (
    old.state is distinct from new.state
    or old.limits is distinct from new.limits
    or old.cache_salt is distinct from new.cache_salt
)
execute function add_key_event();

create constraint trigger key_issued after insert on keys
deferrable initially deferred for each row
execute function add_key_event();

-- Not when last_used_at alone is new: that happens all the time, and changes nothing for edges.
create constraint trigger key_changed after update on keys
deferrable initially deferred for each row
when (
    old.revoked_at is distinct from new.revoked_at
    or old.expires_at is distinct from new.expires_at
    or old.limits is distinct from new.limits
    or old.models is distinct from new.models
)
execute function add_key_event();
