-- Which scheduler leads, and which models were ever served.

-- One row for ever, judged by this server's clock: see docs/decisions/0035-leader-row.md.
create table scheduler_leader (
    only_row boolean primary key default true,
    -- The process that has it; empty: nobody had it yet.
    holder text not null,
    -- Rises with each taking.
    term bigint not null,
    expires_at timestamptz not null,
    constraint scheduler_leader_has_one_row check (only_row)
);
insert into scheduler_leader (holder, term, expires_at) values ('', 0, to_timestamp(0));

create table known_models (
    model text collate "C" primary key,
    -- A ModelCard as protobuf's JSON: read and replaced as a whole, and never searched.
    card jsonb not null,
    first_served_at timestamptz not null default now()
);
