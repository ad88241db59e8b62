-- What a statement of the group-commit writer calls where a row did not take
-- effect (a swap missed, a key was used, the process is dead): the database
-- itself refuses the flush, whose COMMIT is on its way already. The code is one
-- that nothing else raises.
CREATE FUNCTION svc_missed() RETURNS boolean VOLATILE LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a row of the flush did not take effect' USING ERRCODE = 'SVC01';
END $$;
GRANT EXECUTE ON FUNCTION svc_missed() TO svc_system;
