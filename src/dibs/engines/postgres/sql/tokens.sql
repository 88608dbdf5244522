-- Tokens: only hashes are stored. And the key that signs tokens which are not stored.

-- name: add_token
insert into dibs.tokens (name, hash, scopes) values (:token, :hash, :scopes) on conflict do nothing returning name;

-- name: tokens
select name, hash, scopes, created_at from dibs.tokens order by created_at, name;

-- name: revoke_token
delete from dibs.tokens where name = :token returning name;

-- name: secret
with made as (insert into dibs.secrets (name, value) values (:secret, :proposal) on conflict (name) do update set name = excluded.name returning value)
select value from made;
