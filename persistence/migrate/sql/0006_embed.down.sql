DROP INDEX runs_person, threads_end_user, threads_visitor;
ALTER TABLE runs DROP COLUMN person_id;
DROP TABLE end_users, embed_keys;
