-- Stands for the migration of the branch feed, which replaces this file.
SELECT 1;
