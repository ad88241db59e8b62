package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The roles that connections work under (docs/architecture.md, Storage).
const (
	roleAPI    = "svc_api"
	roleSystem = "svc_system"
)

// ErrRoles is returned if a role is missing or has too many rights and the login cannot fix
// it. The message contains the statements to run.
var ErrRoles = errors.New("the database roles are not as they must be")

// ensureRoles creates the two roles and lets the login take them. Roles belong to the whole
// server, so another database's migration may do the same concurrently.
func ensureRoles(ctx context.Context, conn *pgx.Conn) error {
	const attempts = 10
	var err error
	for range attempts {
		if err = tryRoles(ctx, conn); !raced(err) {
			return err
		}
	}
	return fmt.Errorf("make the database roles: %w", err)
}

// raced reports whether another session did the same concurrently.
func raced(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "42710", // duplicate_object
		"23505", // unique_violation, in the catalog
		"XX000": // "tuple concurrently updated"
		return true
	}
	return false
}

func tryRoles(ctx context.Context, conn *pgx.Conn) error {
	for _, role := range []string{roleAPI, roleSystem} {
		var tooPowerful, takeable bool
		err := conn.QueryRow(ctx, `
			SELECT rolsuper OR rolbypassrls OR rolcanlogin,
			       pg_has_role(current_user, oid, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
			FROM pg_roles WHERE rolname = $1`, role).Scan(&tooPowerful, &takeable)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			if err := run(ctx, conn, "CREATE ROLE "+role+" NOLOGIN"); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("look for the role %s: %w", role, err)
		case tooPowerful:
			return fmt.Errorf("%w: %s may log in, bypass row-level security or is a superuser; run as a superuser: ALTER ROLE %s NOLOGIN NOSUPERUSER NOBYPASSRLS;",
				ErrRoles, role, role)
		}
		if !takeable {
			if err := run(ctx, conn, "GRANT "+role+" TO CURRENT_USER"); err != nil {
				return err
			}
		}
	}
	return nil
}

// run turns a lack of rights into instructions for the operator.
func run(ctx context.Context, conn *pgx.Conn, sql string) error {
	_, err := conn.Exec(ctx, sql)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" { // insufficient_privilege
		user := pgx.Identifier{conn.Config().User}.Sanitize()
		return fmt.Errorf("%w: the login %s may not make them; run once, as a superuser or a role with CREATEROLE: "+
			"CREATE ROLE %[3]s NOLOGIN; CREATE ROLE %[4]s NOLOGIN; GRANT %[3]s, %[4]s TO %[2]s;", ErrRoles, user, roleAPI, roleSystem)
	}
	return err
}
