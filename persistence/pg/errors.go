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

// IsUnique reports whether err is the violation of a unique constraint or index: of any if no
// name is given, else of one of the names.
func IsUnique(err error, constraint ...string) bool {
	return violates(err, "23505", constraint)
}

// IsForeignKey reports whether err is the violation of the foreign key of that name, or of
// any if no name is given.
func IsForeignKey(err error, constraint ...string) bool {
	return violates(err, "23503", constraint)
}

func violates(err error, code string, constraint []string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code &&
		(len(constraint) == 0 || slices.Contains(constraint, pgErr.ConstraintName))
}

// IsBusy reports whether err means that the same statements may succeed at once: a
// serialization failure, a deadlock, a lock time-out, or a cancelled statement.
func IsBusy(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && slices.Contains([]string{"40001", "40P01", "55P03", "57014"}, pgErr.Code)
}

// IsUnavailable reports whether err means that the database cannot serve now, and that the
// same call may succeed later: no connection, shutting down or starting, out of disk, memory
// or connections, read-only. A deadline of the caller's context is not included: only the
// caller knows its meaning.
//
// A connection that the server refuses is no connection, whatever the server says: its password was changed, its
// login or its database was locked or renamed. It says so before it has seen a statement of ours, so a mistake in
// one is never among these answers.
func IsUnavailable(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	var connectErr *pgconn.ConnectError
	if errors.As(err, &connectErr) {
		return true
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
			"25006", // read-only transaction: a standby, or set by an operator
			"58030", // I/O error
			"58P01": // one of the server's files is missing
			return true
		}
		return false
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
