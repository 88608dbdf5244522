-- Where this database stands.

-- name: version
select coalesce(max(number), 0) from dibs.migrations;

-- name: applied
select number, name, applied_at from dibs.migrations order by number;

-- name: record
insert into dibs.migrations (number, name, applied_at) select :number, :migration, now from dibs.clock;
