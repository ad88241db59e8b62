// Package pg opens the pools through which the service talks to Postgres, and
// holds what every user of a pool needs: the role a connection works under, the
// typed ids as uuid, the queries in their files, and the names of failures.
//
// It owns no data and starts nothing by itself. Every connection of a pool works
// under one of two roles from its first statement on: API sees the rows of the
// tenant that the setting svc.tenant names, System sees all tenants.
package pg
