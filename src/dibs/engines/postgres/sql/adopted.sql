-- Somebody else's table, as the catalogue describes it. What is done with its rows is compiled from this.

-- name: table
-- Its kind (r and p are tables), its schema, its name, and whether we may read it, if there is one of that name.
select c.relkind::text, n.nspname::text, c.relname::text, has_table_privilege(c.oid, 'select')
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(:quoted::text);

-- name: columns
-- Name, type as declared, whether it may be null, the words of an enum, what a domain is made of, and whether we may read and write it.
select a.attname::text, format_type(a.atttypid, a.atttypmod), not a.attnotnull,
  (select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum e where e.enumtypid = b.oid)::text,
  case when b.typtype in ('r', 'm') then 'a range' when b.typtype = 'c' then 'a composite' when b.typcategory = 'A' then 'an array'
    else format_type(b.oid, b.modifier) end,
  has_column_privilege(a.attrelid, a.attnum, 'select'), has_column_privilege(a.attrelid, a.attnum, 'update')
from pg_attribute a
cross join lateral (
  with recursive made (oid, modifier, typtype, typcategory, typbasetype, typtypmod) as (
    select oid, a.atttypmod, typtype, typcategory, typbasetype, typtypmod from pg_type where oid = a.atttypid
    union all
    select t.oid, m.typtypmod, t.typtype, t.typcategory, t.typbasetype, t.typtypmod from made m join pg_type t on t.oid = m.typbasetype
    where m.typtype = 'd')
  select * from made where typtype <> 'd') b
where a.attrelid = to_regclass(:quoted::text) and a.attnum > 0 and not a.attisdropped order by a.attnum;

-- name: indexes
-- Of those on plain columns: the name, the columns, whether it is unique, for which rows it holds, if not for all, and whether it
-- was ever finished.
select c.relname::text,
  (select json_agg(a.attname order by k.n) from unnest(i.indkey) with ordinality k(attnum, n)
   join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum where k.n <= i.indnkeyatts)::text,
  i.indisunique, pg_get_expr(i.indpred, i.indrelid), i.indisvalid
from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = to_regclass(:quoted::text) and i.indexprs is null;
