// Package migrate brings a database to the schema of this binary.
//
// It owns the files sql/NNNN_name.up.sql and .down.sql, the table schema_migrations and the
// two roles of the connections. Migrations run in order, each in a transaction of its own,
// under an advisory lock: any number of nodes may start at once. A database that is newer
// than the binary, or was migrated by different files, is refused and not changed.
package migrate
