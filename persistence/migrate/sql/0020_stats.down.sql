DROP INDEX approvals_waiting;
DROP TABLE stats;
DROP TABLE stats_mark;
DROP TABLE tallies;
DROP DOMAIN tally;
