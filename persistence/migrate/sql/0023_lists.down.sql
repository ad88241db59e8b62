DROP TRIGGER end_users_untagged ON end_users;
DROP TRIGGER end_users_retagged ON end_users;
DROP TRIGGER end_users_tagged ON end_users;
DROP FUNCTION keep_end_user_tags();
DROP TABLE end_user_tags;
DROP INDEX kb_documents_source, kb_documents_status;
