-- One value sealed under the master key of this database, so that a process
-- with another key is refused at its start (package reseal, Unlock).
CREATE TABLE canary (
  one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
  value      bytea       NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
REVOKE ALL ON canary FROM svc_api;
