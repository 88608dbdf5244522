-- What a connection of ours keeps for itself: lists on their way from one step to the next.

-- name: temporary
create temp table if not exists dibs_picked (place integer primary key, id integer not null);
create temp table if not exists dibs_unsettled (id integer, token integer, primary key (id, token));
create temp table if not exists dibs_special (
  id integer primary key, token integer, state integer, days integer, result text, failure text, hook_error text);
create temp table if not exists dibs_back (id integer primary key, token integer, way integer, delay real, failure text);
create temp table if not exists dibs_listed (
  id integer primary key, number integer, worker text, type text, unique_key text, unique_for real);
create temp table if not exists dibs_written (
  job integer primary key, token integer, state integer, error text, attempts integer, key text, row_key text);
create temp table if not exists dibs_rows (place integer primary key, job integer, key text, row_key text, attempts integer);
