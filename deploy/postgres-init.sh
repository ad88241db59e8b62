#!/bin/sh
# Runs once, on an empty cluster: a login that is no superuser, its database, and the two roles it works under.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$SVC_DB_PASSWORD" --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
CREATE ROLE svc LOGIN PASSWORD :'password';
CREATE ROLE svc_api NOLOGIN;
CREATE ROLE svc_system NOLOGIN;
GRANT svc_api, svc_system TO svc;
CREATE DATABASE svc OWNER svc;
SQL
