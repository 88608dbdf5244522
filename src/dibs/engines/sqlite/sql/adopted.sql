-- Somebody else's table, as the catalogue describes it. What is done with its rows is compiled from this.

-- name: table
-- Its kind (r is a table), its schema, its name, and whether we may read it, if there is one of that name.
select case type when 'table' then 'r' else 'v' end, 'main', name, 1 from sqlite_master
where type in ('table', 'view') and name = :table collate nocase and coalesce(:schema, 'main') = 'main';

-- name: columns
-- Name, type as declared, whether it may be null, the words of an enum and what a domain is made of, which SQLite does not have, and
-- whether we may read and write it.
select name, type, "notnull" = 0 and pk = 0, null, null, 1, 1 from pragma_table_xinfo(:table) where hidden in (0, 2, 3) order by cid;

-- name: indexes
-- Of those on plain columns: the name, the columns, whether it is unique, for which rows it holds, if not for all, and whether it
-- was ever finished.
select 'primary key', json_group_array(name), 1, null, 1
from (select name from pragma_table_info(:table) where pk > 0 order by pk) having count(*) > 0
union all
select l.name, (select json_group_array(i.name) from (select name from pragma_index_info(l.name) order by seqno) i), l."unique",
  (select substr(m.sql, instr(replace(lower(m.sql), char(10), ' '), ' where ') + 7) from sqlite_master m where m.type = 'index' and m.name = l.name and l.partial), 1
from pragma_index_list(:table) l;
