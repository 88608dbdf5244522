-- Tokens: only hashes are stored. And the key that signs tokens which are not stored.

-- name: add_token
delete from temp.dibs_listed;
insert into temp.dibs_listed (id) select 1 where not exists (select 1 from dibs.tokens where name = :token);
insert into dibs.tokens (name, hash, scopes, created_at) select :token, :hash, :scopes, now from dibs.clock where exists (select 1 from temp.dibs_listed);
select id from temp.dibs_listed;

-- name: tokens
select name, hash, scopes, created_at from dibs.tokens order by created_at, name;

-- name: revoke_token
delete from temp.dibs_listed;
insert into temp.dibs_listed (id) select 1 from dibs.tokens where name = :token;
delete from dibs.tokens where name = :token;
select id from temp.dibs_listed;

-- name: secret
insert into dibs.secrets (name, value) values (:secret, :proposal) on conflict do nothing;
select value from dibs.secrets where name = :secret;
