-- Somebody else's table, as the catalogue describes it. What is done with its rows is compiled from this.

-- name: table
-- Its kind (r and p are tables), its schema and its name, if there is one of that name.
select c.relkind::text, n.nspname::text, c.relname::text, has_table_privilege(c.oid, 'select') and has_table_privilege(c.oid, 'update')
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(:quoted::text);

-- name: columns
-- Name, type as declared, whether it may be null, and the words of an enum.
select a.attname::text, format_type(a.atttypid, a.atttypmod), not a.attnotnull,
  (select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum e where e.enumtypid = a.atttypid)::text
from pg_attribute a where a.attrelid = to_regclass(:quoted::text) and a.attnum > 0 and not a.attisdropped order by a.attnum;

-- name: indexes
-- Of those on plain columns: the name, the columns, whether it is unique, for which rows it holds, if not for all, and whether it
-- was ever finished.
select c.relname::text,
  (select json_agg(a.attname order by k.n) from unnest(i.indkey) with ordinality k(attnum, n)
   join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum where k.n <= i.indnkeyatts)::text,
  i.indisunique, pg_get_expr(i.indpred, i.indrelid), i.indisvalid
from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = to_regclass(:quoted::text) and i.indexprs is null;
