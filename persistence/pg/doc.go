// Package pg opens the pools through which the service talks to Postgres, and holds what
// every user of a pool needs: the role of its connections, the typed ids as uuid, the queries
// in their files, and the classes of errors.
//
// It owns no data and has no goroutines of its own. Every connection of a pool works under
// one of two roles from its first statement on: API sees the rows of the tenant in the
// setting svc.tenant, System sees all tenants.
package pg
