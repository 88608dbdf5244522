-- Somebody else's table, as the catalogue describes it. What is done with its rows is compiled from this.

-- name: table
-- Its kind (r is a table), its schema and its name, if there is one of that name.
select case type when 'table' then 'r' else 'v' end, 'main', name, 1 from sqlite_master
where type in ('table', 'view') and name = :table collate nocase;

-- name: columns
-- Name, type as declared, whether it may be null, and the words of an enum, which SQLite does not have.
select name, type, "notnull" = 0 and pk = 0, null from pragma_table_xinfo(:table) where hidden in (0, 2, 3) order by cid;

-- name: unique_columns
-- The columns of each unique index that holds for all rows.
select json_group_array(name) from (select name from pragma_table_info(:table) where pk > 0 order by pk) having count(*) > 0
union all
select (select json_group_array(i.name) from (select name from pragma_index_info(l.name) order by seqno) i)
from pragma_index_list(:table) l where l."unique" and not l.partial;
