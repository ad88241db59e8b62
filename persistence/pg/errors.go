package pg

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// IsUnique reports whether err is the violation of the unique constraint or
// index of that name; with no name, of any; with several, of one of them.
func IsUnique(err error, constraint ...string) bool {
	return violates(err, "23505", constraint)
}

// IsForeignKey reports whether err is the violation of the foreign key of that
// name; with no name, of any.
func IsForeignKey(err error, constraint ...string) bool {
	return violates(err, "23503", constraint)
}

// IsCheck reports whether err is the violation of the CHECK of that name; with
// no name, of any.
func IsCheck(err error, constraint ...string) bool {
	return violates(err, "23514", constraint)
}

func violates(err error, code string, constraint []string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code &&
		(len(constraint) == 0 || slices.Contains(constraint, pgErr.ConstraintName))
}

// IsUnavailable reports whether err says that the database cannot serve now, and
// that the same call may succeed later: no connection, shutting down or starting,
// out of disk, memory or connections, read-only. A deadline of the caller's
// context is not among these: only the caller knows what it meant.
func IsUnavailable(err error) bool {
	if err == nil {
		return false
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch {
		case strings.HasPrefix(pgErr.Code, "08"), // connection exception
			strings.HasPrefix(pgErr.Code, "53"): // insufficient resources: 53100 disk full, 53300 too many connections
			return true
		}
		switch pgErr.Code {
		case "57P01", "57P02", "57P03", // admin shutdown, crash shutdown, cannot connect now
			"57P05", // idle session time-out
			"25006", // read-only transaction: a standby, or an operator's brake
			"58030", // I/O error
			"58P01": // a file of the server's is missing
			return true
		}
		return false
	}
	if errors.Is(err, context.Canceled) {
		return false
	}
	var connectErr *pgconn.ConnectError
	if errors.As(err, &connectErr) {
		return true
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	for _, broken := range []error{pgconn.ErrConnClosed, io.ErrUnexpectedEOF, net.ErrClosed,
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, broken) {
			return true
		}
	}
	var netErr *net.OpError
	return errors.As(err, &netErr)
}
